"""A user's own model: where it comes from, how it is divided, and what is refused with which words."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

from fedlens.cli import app
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export import network
from fedlens_export.errors import ExportError, NotExportable, UnknownChoice, WeightsUnusable
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.models import explaining, own_head, own_model
from fedlens_export.programs import lowering
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.export.small import CLASSES

PAGE = (Path(__file__).parents[3] / "docs" / "your-own-model.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SIDE = 8
MODEL = "my_model:build"


class Own(nn.Module):
    """A model of which each test changes what it needs."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.change = change
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc1 = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5)
        self.scale = nn.Parameter(torch.ones(5))
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(5, 3)
        self.fc3 = nn.Linear(4, 3)
        if change == "recurrent":
            self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, photos: Tensor) -> object:
        maps = self.conv(photos)
        if self.change == "dropout in the backbone":
            maps = functional.dropout(maps)
        if self.change == "recurrent":
            maps = self.lstm(maps.flatten(2).transpose(1, 2))[0].transpose(1, 2).unsqueeze(3)
        features = maps.flatten(2).transpose(1, 2) if self.change == "tokens" else maps.mean((2, 3))
        if self.change == "branch in the backbone" and features.sum() > 0:
            features = features * 2
        if self.change == "cumsum":
            features = features.cumsum(1)
        x = torch.relu(self.fc1(features))
        match self.change:
            case "norm":
                x = self.norm(x)
            case "scale":
                x = x * self.scale
            case "shortcut":
                x = x + features.mean(1, keepdim=True)
            case "branch in the head":
                x = x * 2 if x.sum() > 0 else x
            case "numpy":
                x = torch.from_numpy(x.numpy())
            case "dropout always on":
                x = functional.dropout(x)
            case "dropout in training":
                x = functional.dropout(x, training=self.training)
        logits = self.fc2(self.drop(x))
        return {
            "softmax": lambda: logits.softmax(1),
            "tuple": lambda: (logits, features),
            "two heads": lambda: logits + self.fc3(features * 2),
            "constant": lambda: torch.zeros(len(photos), 3) + 0 * maps.sum(),
            "four classes": lambda: torch.cat([logits, logits[:, :1]], 1),
            "tokens": lambda: self.fc2(x)[:, 0],
        }.get(self.change, lambda: logits)()


def spec(head: str | None, side: int = SIDE, *, pte: bool = False) -> ExportSpec:
    return ExportSpec(model=MODEL, class_names=CLASSES, input_size=side, batch=4, head=head, pte=pte)


def building(change: str = "", before: str = "pass") -> str:
    """Code of a module that builds an `Own`."""
    own = "from tests.export.models.test_own_model import Own"
    return f"import torch\n{own}\ndef build():\n    {before}\n    return Own({change!r})\n"


def divided(model: nn.Module, head: str) -> own_model.Divided:
    return own_model.divide(model, own_model.head_layers(model, head), SIDE, len(CLASSES))


def photos(count: int = 2) -> Tensor:
    return torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of module `my_model`, in the current folder."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "my_model.py"
    sys.modules.pop("my_model", None)


@pytest.mark.parametrize(
    ("change", "head"), [("", ("fc1", "fc2")), ("", ("fc2",)), ("dropout in training", ("fc1", "fc2"))]
)
def test_backbone_and_head_together_give_what_the_model_gives(change: str, head: tuple[str, ...]) -> None:
    model = Own(change).eval()
    every = {name.partition(".")[0] for name, _ in model.named_parameters()}
    with torch.no_grad():
        expected = model(photos())

    parts = divided(model, ", ".join(head))

    with torch.no_grad():
        found = parts.head(parts.backbone(photos()))
    torch.testing.assert_close(found, expected)
    assert {name.partition(".")[0] for name, _ in parts.head.named_parameters()} == set(head)
    assert {name.partition(".")[0] for name, _ in parts.backbone.named_parameters()} == every - set(head)
    assert parts.left_out == (("drop",) if "fc1" in head else ())


def test_a_layer_that_holds_others_stands_for_the_fc_layers_in_it() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 4), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    )

    parts = divided(model, "2")

    assert [name for name, _ in parts.head.named_parameters()] == ["2.0.weight", "2.0.bias", "2.2.weight", "2.2.bias"]


def test_the_layer_that_is_called_last_is_the_classifier_wherever_it_was_made() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(5, 3)
            self.hidden = nn.Linear(3 * SIDE * SIDE, 5)

        def forward(self, photos: Tensor) -> Tensor:
            found: Tensor = self.out(self.hidden(photos.flatten(1)))
            return found

    head = divided(Turned(), "out,hidden").head

    assert [name for name, layer in head.named_modules() if isinstance(layer, nn.Linear)][-1] == "out"


def test_a_relu_before_the_classifier_makes_its_features_known_to_contrastive_objectives() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)).eval()
    rows = photos().flatten(1)
    with torch.no_grad():
        expected = model[1](rows), model(photos())

    head = divided(model, "1,3").head

    assert isinstance(head, own_head.ClassifiedHead)
    with torch.no_grad():
        torch.testing.assert_close(head(rows, with_features=True), expected)


@pytest.mark.parametrize(
    ("change", "head", "reason"),
    [
        ("", "fc1", r"FC layer 'fc2' comes behind 'fc1'; name it too: --head fc1,fc2"),
        ("", "nope", r"no layer 'nope'; its FC layers are fc1, fc2, fc3"),
        ("", "fc1,,fc2", r"no layer ''"),
        ("", "conv", r"'conv' is Conv2d, and a head is made of FC layers"),
        ("", "fc2,fc3", r"'fc3' is named for the head, but the model does not call it"),
        ("norm", "fc1,fc2", r"'norm' \(BatchNorm1d\) comes behind FC layer 'fc1' and has weights"),
        ("scale", "fc1,fc2", r"uses 'scale' behind the features"),
        ("shortcut", "fc1,fc2", r"two branches meet behind layer 'fc1': a tensor of shape \[2, 1\]"),
        ("two heads", "fc1,fc2,fc3", r"layers 'fc1' and 'fc3' take different tensors"),
        ("branch in the head", "fc1,fc2", r"test_own_model.py, line \d+: x = x \* 2 if .*: it branches on values"),
        ("numpy", "fc1,fc2", r"line \d+: x = torch.from_numpy\(x.numpy\(\)\)"),
        ("dropout always on", "fc1,fc2", r"dropout as a function that is on"),
        ("softmax", "fc1,fc2", r"behind its last FC layer 'fc2' the model applies 'softmax'"),
        ("tuple", "fc1,fc2", r"gives a tuple in evaluation mode"),
        ("constant", "fc1,fc2", r"output does not depend on the head's layers"),
        ("four classes", "fc1,fc2", r"gives \[2, 4\] for two rows; for 3 classes it must be \[2, 3\]"),
        ("tokens", "fc1,fc2", r"applies 'getitem'"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_the_name_of_what_is_in_the_way(
    change: str, head: str, reason: str
) -> None:
    with pytest.raises((NotExportable, UnknownChoice), match=reason):
        divided(Own(change), head)


def test_features_must_be_flat() -> None:
    model = nn.Sequential(nn.Flatten(2), nn.Linear(SIDE * SIDE, 4), nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten())
    model.append(nn.Linear(4, 3))

    with pytest.raises(NotExportable, match=r"layer '1' is \['N', 3, 64\]; features must be \[N, F\], so pool"):
        divided(model, "1,4")


MODULES = {
    "classes": "from torch import nn\ndef build(classes): return nn.Linear(1, classes)",
    "sides": "from torch import nn\ndef build(*, num_classes, input_size): return nn.Linear(input_size, num_classes)",
    "class": "from torch import nn\nclass build(nn.Linear):\n  def __init__(self, classes): super().__init__(1, 3)",
    "made": "from torch import nn\nbuild = nn.Linear(1, 3)",
}


@pytest.mark.parametrize("kind", MODULES)
def test_the_function_is_given_what_it_has_arguments_for(module: Path, kind: str) -> None:
    module.write_text(MODULES[kind])

    made = own_model.build(MODEL, 3, SIDE, seed=0)

    assert isinstance(made, nn.Linear)
    assert made.out_features == 3


def test_the_seed_decides_what_is_drawn(module: Path) -> None:
    module.write_text(MODULES["classes"])

    first, again, other = (own_model.build(MODEL, 3, SIDE, seed).weight for seed in (1, 1, 2))

    assert torch.equal(first, again)  # type: ignore[arg-type]  # an nn.Linear's
    assert not torch.equal(first, other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        "from torch import nn, rand\nNUMBER = rand(1)\nbuild = lambda: nn.Linear(1, 3)",
        "from torch import nn\nbuild = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))",
    ],
    ids=["a module that draws", "a model of the module"],
)
def test_a_second_call_in_the_process_makes_the_same_model(module: Path, content: str) -> None:
    module.write_text(content)

    first = own_model.build(MODEL, 3, SIDE, seed=1)
    tensors = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    if isinstance(first, nn.Sequential):
        divided(first, "1")
    again = own_model.build(MODEL, 3, SIDE, seed=1).state_dict()

    assert tensors.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("content", "model", "reason"),
    [
        ("", "my_modl:build", "no module 'my_modl' in the current folder or on PYTHONPATH"),
        ("import not_there", MODEL, "'my_model' cannot be imported: No module named 'not_there'"),
        ("1 / 0", MODEL, "'my_model' cannot be imported: ZeroDivisionError"),
        ("def make(): pass", MODEL, "has no function 'build'; it has make"),
        ("def make(): pass", "my_model:", "has no function ''; it has make"),
        ("def build(width): pass", MODEL, "asks for 'width'; export passes classes, num_classes, input"),
        ("def build(classes, /): return [][classes]", MODEL, r"line 1: def build.* IndexError"),
        ("def build(): return 1", MODEL, "returns int; it must return an nn.Module"),
        ("def build():\n    return [][0]", MODEL, r"failed \(at my_model.py, line 2: return \[\]\[0\]\): Index"),
        (
            "from torch import nn\ndef build(): return nn.Linear(1, 3).double()",
            MODEL,
            "'weight' is torch.float64 on cpu; it must be float32",
        ),
    ],
)
def test_a_function_that_gives_no_model_is_refused(module: Path, content: str, model: str, reason: str) -> None:
    module.write_text(content)

    with pytest.raises(ExportError, match=reason):
        own_model.build(model, 3, SIDE, seed=0)


def test_weights_of_a_head_for_other_classes_are_left_as_they_were_made(tmp_path: Path) -> None:
    trained, model = Own(), Own()
    state = {**trained.state_dict(), "fc2.weight": torch.zeros(1000, 5), "fc2.bias": torch.zeros(1000)}
    del state["fc1.bias"]
    torch.save(state, tmp_path / "own.pt")
    before = model.fc2.weight.detach().clone()

    kept = own_model.load_weights(model, tmp_path / "own.pt", ["fc1", "fc2"])

    assert kept == ("fc1.bias", "fc2.bias", "fc2.weight")
    assert torch.equal(model.conv.weight, trained.conv.weight)
    assert torch.equal(model.fc1.weight, trained.fc1.weight)
    assert torch.equal(model.fc2.weight, before)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"module.conv.weight": torch.zeros(1)}, "no tensor 'module.conv.weight'"),
        ({"conv.weight": torch.zeros(1)}, r"'conv.weight' is \[1\], not \[4, 3, 3, 3\]"),
        ({"conv.bias": torch.full((4,), torch.nan)}, "'conv.bias' holds a NaN"),
        (
            {"conv.bias": torch.zeros(4, dtype=torch.complex64)},
            "'conv.bias' is torch.complex64, which is no torch.float",
        ),
        ({"conv.bias": torch.zeros(4).to(torch.float8_e5m2)}, "'conv.bias' is torch.float8_e5m2, which"),
        ({"conv.bias": None}, "1 tensors are missing, the first is 'conv.bias'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Tensor | None], reason: str) -> None:
    state = {name: tensor for name, tensor in {**Own().state_dict(), **change}.items() if tensor is not None}
    torch.save(state, tmp_path / "own.pt")

    with pytest.raises(WeightsUnusable, match=reason):
        own_model.load_weights(Own(), tmp_path / "own.pt", ["fc1", "fc2"])


@pytest.mark.parametrize(
    ("change", "head", "reason"),
    [
        ("branch in the backbone", "fc1,fc2", r"at test_own_model.py, line \d+: if self.change == .*branch on values"),
        ("cumsum", "fc1,fc2", r"operator 'torch.ops.aten.cumsum.default' .* line \d+: features = features.cumsum\(1\)"),
        ("dropout in training", None, r"dropout as a function that is on in .* line \d+: x = functional.dropout"),
        ("dropout in the backbone", "fc1,fc2", r"make it an nn.Dropout layer.* line \d+: maps = functional.dropout"),
        ("recurrent", "fc1,fc2", r"line \d+: maps = self.lstm\(.*; layer 'lstm' \(LSTM\) is recurrent, .*: take conv"),
        ("", None, r"model itself \(Own\) has weights; .*: replace it, leave it out"),
    ],
)
def test_what_programs_cannot_express_is_named(module: Path, change: str, head: str | None, reason: str) -> None:
    module.write_text(building(change))

    with pytest.raises(NotExportable, match=reason):
        export_bundle(module.parent / "bundle", spec(head))

    assert not (module.parent / "bundle").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "head", "warnings"),
    [
        (building(), "fc1,fc2", 1),
        (building(before="torch.manual_seed(3)"), "fc1,fc2", 0),  # as if read from a file
        ("from torch import nn\nbuild = lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))", None, 0),
    ],
)
def test_a_frozen_backbone_with_random_weights_is_told(
    module: Path, content: str, head: str | None, warnings: int
) -> None:
    module.write_text(content)
    told: list[str] = []

    export_bundle(module.parent / "bundle", spec(head), on_stage=told.append)

    assert len([line for line in told if line.startswith("note: the frozen backbone has random weights")]) == warnings


def test_a_refusal_of_fedlens_is_no_line_of_the_users_code(module: Path) -> None:
    module.write_text("from torch import nn\nbuild = nn.Sequential(nn.Flatten(), nn.PReLU(), nn.Linear(192, 3))")

    with pytest.raises(NotExportable, match=r"'1' \(PReLU\) has weights") as raised:
        export_bundle(module.parent / "bundle", spec(None))
    assert "(at " not in str(raised.value)


def test_an_operator_behind_batch_norm_is_named_with_its_line(module: Path) -> None:
    error = "class Error(nn.Module):\n  def forward(self, x):\n    return torch.erf(x)"
    layers = "nn.Flatten(), nn.BatchNorm1d(192), Error(), nn.Linear(192, 3)"
    module.write_text(f"import torch\nfrom torch import nn\n{error}\nbuild = nn.Sequential({layers})")

    with pytest.raises(
        NotExportable, match=r"'torch.ops.aten.erf.default' .*\(at my_model.py, line 5: return torch.erf"
    ):
        export_bundle(module.parent / "bundle", spec(None))


def test_a_dropout_layer_of_two_names_is_left_out_under_both() -> None:
    drop = nn.Dropout(0.5)
    model = nn.Sequential(nn.Flatten(), drop, nn.Linear(3 * SIDE * SIDE, 4), drop, nn.Linear(4, 3))

    assert own_model.without_dropout(model, SIDE) == ("1", "3")

    assert not [layer for layer in model.modules() if isinstance(layer, nn.Dropout)]


def test_a_model_that_does_not_take_the_photos_is_told_once_where() -> None:
    model = Own()

    with pytest.raises(NotExportable, match=r"float32\[2, 3, 1, 1\] \(at test_own_model.py, line \d+: .*") as raised:
        with explaining.explained(model, 1):
            own_model.divide(model, own_model.head_layers(model, "fc1,fc2"), 1, len(CLASSES))

    assert str(raised.value).count("(at ") == 1
    assert "branch on values" not in str(raised.value)


def test_looking_for_dropout_leaves_the_statistics_of_batch_norm_as_they_are() -> None:
    model = Own("norm")
    model.norm.running_mean = torch.full((5,), 3.0)

    own_model.without_dropout(model, SIDE)

    assert model.norm.running_mean.tolist() == [3.0] * 5
    assert model.norm.running_var is not None
    assert model.norm.running_var.tolist() == [1.0] * 5
    assert not model.training


def _commands() -> list[list[str]]:
    (script,) = (block for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if "--head" in block)
    return [shlex.split(line)[1:] for line in script.strip().splitlines()]


@pytest.mark.slow
def test_the_page_makes_a_bundle_that_computes_what_its_model_does(module: Path) -> None:
    module.write_text(EXAMPLE)
    for name in CLASSES:
        (module.parent / "photos" / name).mkdir(parents=True)
    model = own_model.build(MODEL, len(CLASSES), 32, seed=5).eval()
    torch.save(model.state_dict(), module.parent / "birds.pt")
    (command,) = _commands()

    result = CliRunner().invoke(app, command)

    assert result.exit_code == 0, result.output
    assert "note: trained without the dropout of drop" in result.stderr
    bundle = Bundle.open(module.parent / "bundle")
    engine = TorchEngine(bundle)
    photo = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    logits = engine.predict(bundle.initial(), engine.embed(photo.numpy())[None])
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(logits), model(photo), rtol=1e-5, atol=1e-5)
    assert bundle.manifest.bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE
    assert [tensor.name for tensor in bundle.manifest.tensors] == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]


@pytest.mark.long
def test_the_pages_model_can_be_trained_as_a_whole_and_on_phones(module: Path) -> None:
    module.write_text(EXAMPLE)

    whole = export_bundle(module.parent / "whole", spec(None, 32))
    phones = export_bundle(module.parent / "phones", spec("fc1,fc2", 32, pte=True))

    assert whole.manifest.bundle_class == pb.BUNDLE_CLASS_WHOLE_MODEL
    assert "features.0.weight" in [tensor.name for tensor in whole.manifest.tensors]
    assert all(pb.PROGRAM_FORMAT_PTE in [file.format for file in program.files] for program in phones.manifest.programs)


def test_every_refusal_of_the_page_is_one_that_export_gives() -> None:
    sources = "".join(
        Path(module.__file__).read_text(encoding="utf-8") for module in (own_model, own_head, network, lowering)
    )
    quoted = [
        part
        for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
        for part in re.findall(r"`([^`]+)`", row)
        if not re.search(r"'|torch\.|cuda", part)
    ]

    flat = re.sub(r'"\s*\n\s*f?"', "", sources)
    assert len(quoted) >= 6
    assert [part for part in quoted if part not in flat and part != "is not among those"] == []
