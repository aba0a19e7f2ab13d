"""Bundles: what is in them, that their bytes are reproducible, and what is refused."""

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision  # type: ignore[import-untyped]
from torch import Tensor, nn

from fedlens_export.errors import NotExportable, TargetExists, UnknownChoice
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.programs import lowering
from fedlens_proto.blob import Blob
from fedlens_proto.errors import ManifestError
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.programs import pt2
from fedlens_proto.slots import references, tensor_of
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.export.small import frozen_bundle, whole_bundle


class Turned(nn.Module):
    """Has its classifier before the layer that it calls first."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)
        self.hidden = nn.Linear(48, 8)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.out(torch.relu(self.hidden(rows)))
        return found


class Named(nn.Module):
    """Gives a dict."""

    def forward(self, logits: Tensor) -> dict[str, Tensor]:
        return {"logits": logits}


def same(layer: nn.Linear) -> nn.Linear:
    """Another layer with the same weight."""
    other = nn.Linear(layer.in_features, layer.out_features)
    other.weight = layer.weight
    return other


GERMAN = {"cat": "Katze", "dog": "Hund", "emu": "Emu"}
EXPORT = """
import sys
from pathlib import Path
from fedlens_export.exporting import ExportSpec, export_bundle
spec = ExportSpec(model="lenet5_bn", class_names=("cat", "dog", "emu"), input_size=16, batch=4)
print(export_bundle(Path(sys.argv[1]), spec).id.hex())
"""


def kinds(slots: Iterable[pb.Slot]) -> list[str]:
    return [pb.SlotKind.Name(kind).removeprefix("SLOT_KIND_") for kind, _ in groupby(slot.kind for slot in slots)]


def test_a_whole_model_bundle_trains_all_layers_on_photos(whole_model: Bundle) -> None:
    manifest = whole_model.manifest

    assert manifest.bundle_class == pb.BUNDLE_CLASS_WHOLE_MODEL
    step = program(manifest, "step")
    assert (manifest.model, step.objective, step.optimiser) == ("lenet5_bn", "cross_entropy", "sgd")
    assert list(manifest.class_names) == ["cat", "dog", "emu"]
    assert (manifest.preprocessing.height, manifest.preprocessing.width, manifest.batch) == (16, 16, 4)
    assert [p.name for p in manifest.programs] == ["step", "predict"]
    assert kinds(program(manifest, "step").inputs) == ["WEIGHT", "OPTIMISER", "INPUT", "LABEL", "MASK", "HYPER"]
    assert kinds(program(manifest, "step").outputs) == ["WEIGHT", "OPTIMISER", "LOSS", "LOGITS"]
    assert kinds(program(manifest, "predict").inputs) == ["WEIGHT", "INPUT", "MASK"]
    assert [h.name for h in manifest.hyper_parameters] == ["lr_extractor", "lr_classifier", "momentum", "weight_decay"]
    assert sorted(whole_model.initial()) == [t.name for t in manifest.tensors]


@pytest.mark.slow
def test_display_names_change_the_manifest_alone(tmp_path: Path, whole_model: Bundle, small_spec: ExportSpec) -> None:
    bundle = export_bundle(tmp_path / "bundle", replace(small_spec, display_names={"de": GERMAN}))

    (shown,) = bundle.manifest.display_names
    assert (shown.language, list(shown.names)) == ("de", ["Katze", "Hund", "Emu"])
    bundle.manifest.ClearField("display_names")
    assert bundle.manifest.SerializeToString(deterministic=True) == whole_model.raw


@pytest.mark.slow
def test_trainable_batch_norm_fills_the_last_batch_and_nothing_else_does(
    whole_model: Bundle, mobilenet: Bundle
) -> None:
    # The backbone of the second has BatchNorm too, but it is frozen.
    assert whole_model.manifest.last_batch == pb.LAST_BATCH_FILLED
    assert mobilenet.manifest.last_batch == pb.LAST_BATCH_MASKED


def test_a_frozen_backbone_travels_beside_its_program(mobilenet: Bundle) -> None:
    manifest = mobilenet.manifest
    embed = program(manifest, "embed")

    assert manifest.bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE
    assert kinds(embed.inputs) == ["FROZEN", "INPUT"]
    assert list(embed.inputs[-1].shape) == [1, 3, 32, 32]
    assert list(embed.outputs[0].shape) == [1, 576]
    assert manifest.frozen
    names = ["classifier.bias", "classifier.weight", "extractor.bias", "extractor.weight"]
    assert [t.name for t in manifest.tensors] == names
    step = program(manifest, "step")
    assert kinds(step.inputs)[:4] == ["WEIGHT", "OPTIMISER", "COUNTER", "REFERENCE"]
    assert [slot.name for slot in step.inputs if slot.kind == pb.SLOT_KIND_COUNTER] == ["classifier", "extractor"]
    compared = {name: [tensor_of(slot) for slot in found] for name, found in references(step).items()}
    assert compared == {"global": names}


def test_embed_gives_what_torchvisions_own_network_does(mobilenet: Bundle, weights_file: Path) -> None:
    # Its `features`, averaged over the picture, for a photo normalised as ImageNet's weights want it.
    network = torchvision.models.mobilenet_v3_small()
    network.load_state_dict(torch.load(weights_file, weights_only=True), strict=False)
    photo = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalised = (photo - mean.reshape(3, 1, 1)) / std.reshape(3, 1, 1)
    frozen = Blob.open(mobilenet.part(mobilenet.manifest.frozen))
    slots = program(mobilenet.manifest, "embed").inputs
    embed = lowering.load(mobilenet.program_file("embed", pb.PROGRAM_FORMAT_PT2).read_bytes())

    with torch.no_grad():
        expected = network.eval().features(normalised).mean((2, 3))
        (found,) = embed(*(torch.from_numpy(np.array(frozen[slot.name])) for slot in slots[:-1]), photo)

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_any_module_can_be_a_backbone(flatten_bundle: Bundle) -> None:
    assert list(program(flatten_bundle.manifest, "embed").outputs[0].shape) == [1, 12]
    assert not flatten_bundle.manifest.frozen


def test_programs_in_a_bundle_are_canonical(mobilenet: Bundle) -> None:
    for name in ("embed", "step", "predict"):
        raw = mobilenet.program_file(name, pb.PROGRAM_FORMAT_PT2).read_bytes()
        assert pt2.canonical(raw) == raw


@pytest.mark.slow
def test_two_processes_in_two_folders_export_the_same_bytes(tmp_path: Path, whole_model: Bundle) -> None:
    script = tmp_path / "elsewhere" / "export.py"
    script.parent.mkdir()
    script.write_text(EXPORT)

    printed = subprocess.run(
        [sys.executable, script, tmp_path / "deep" / "down" / "bundle"],
        check=True,
        capture_output=True,
        text=True,
        cwd=script.parent,
        env={**os.environ, "PYTHONHASHSEED": "123", "HOME": str(tmp_path)},
    ).stdout

    assert printed.strip() == whole_model.id.hex()


def test_no_part_tells_where_it_was_made(whole_model: Bundle, mobilenet: Bundle) -> None:
    here = Path(__file__).parents[2]
    traces = [str(path).encode() for path in (whole_model.folder.parent, here, Path.home() / "", Path(sys.prefix))]
    traces = [trace for trace in traces if len(trace) > 3]

    for bundle in (whole_model, mobilenet):
        for content in (bundle.raw, *(bundle.part(p.sha256).read_bytes() for p in bundle.manifest.parts)):
            assert not [trace for trace in traces if trace in content]
            assert b".py" not in content


def test_the_seed_decides_the_initial_weights(tmp_path: Path, small_spec: ExportSpec, whole_model: Bundle) -> None:
    other = export_bundle(tmp_path / "other", replace(small_spec, seed=1))

    assert other.manifest.initial != whole_model.manifest.initial
    assert [p.files[0].sha256 for p in other.manifest.programs] == [
        p.files[0].sha256 for p in whole_model.manifest.programs
    ]


def test_exporting_the_same_again_leaves_the_bundle_as_it_is(small_spec: ExportSpec, whole_model: Bundle) -> None:
    before = (whole_model.folder / "manifest.pb").stat()

    again = export_bundle(whole_model.folder, small_spec)

    assert again.id == whole_model.id
    assert (whole_model.folder / "manifest.pb").stat() == before


def never(stage: str) -> None:
    """For an export that must be refused before it begins."""
    raise AssertionError(stage)


def test_a_step_may_take_one_photo(tmp_path: Path) -> None:
    bundle = whole_bundle(tmp_path / "bundle", nn.Linear(48, 3), batch=1)

    step = program(bundle.manifest, "step")
    assert [list(slot.shape) for slot in step.inputs if slot.kind == pb.SLOT_KIND_MASK] == [[1]]


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path, small_spec: ExportSpec) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "thesis.txt").write_text("years of work")

    with pytest.raises(TargetExists, match="bundle holds something else; remove it or choose another folder"):
        export_bundle(tmp_path / "bundle", small_spec, on_stage=never)

    assert [p.name for p in tmp_path.rglob("*")] == ["bundle", "thesis.txt"]


def test_a_link_to_nothing_is_no_folder(tmp_path: Path, small_spec: ExportSpec) -> None:
    (tmp_path / "bundle").symlink_to(tmp_path / "gone")

    with pytest.raises(TargetExists, match="bundle is a link to nothing; choose another folder"):
        export_bundle(tmp_path / "bundle", small_spec, on_stage=never)


def test_a_folder_that_cannot_be_made_is_told_first(tmp_path: Path, small_spec: ExportSpec) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(TargetExists, match="file is a file; choose another folder"):
        export_bundle(tmp_path / "file" / "bundle", small_spec, on_stage=never)


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"objective": "mse"}, UnknownChoice, "'mse' is unknown; there are cross_entropy, proximal"),
        ({"optimiser": "lion"}, UnknownChoice, "'lion' is unknown; there are sgd, adam"),
        ({"class_names": ("cat",)}, NotExportable, "two or more classes are needed, each once; found cat"),
        ({"class_names": ("cat", "cat")}, NotExportable, "found cat, cat"),
        ({"class_names": ("cat", "d\udcffg")}, NotExportable, r"class 'd\\udcffg' has no name in UTF-8"),
        ({"display_names": {"de": {"cat": "Katze"}}}, NotExportable, "'de': class 'dog' is missing"),
        (
            {"display_names": {"de": GERMAN | {"owl": "Eule"}}},
            NotExportable,
            "found 'owl', must be one of cat, dog",
        ),
        ({"display_names": {"German": GERMAN}}, ManifestError, "'German': not a language tag"),
        ({"batch": 0}, NotExportable, "batch 0 is not allowed; 1 to 65536"),
        ({"concatenated": -1}, NotExportable, "-1 extractors cannot be concatenated; 1 to 64 can"),
        ({"input_size": 15}, NotExportable, "at least 16 pixels a side, not 15"),
        ({"input_size": 5000}, NotExportable, "5000 pixels is not allowed"),
        ({"input_size": -1}, NotExportable, "-1 pixels is not allowed"),
        ({"input_size": 0}, NotExportable, "0 pixels is not allowed; 1 to"),
        ({"pretrain": Path("photos")}, NotExportable, "lenet5_bn has no backbone"),
        ({"head": "hidden"}, NotExportable, "lenet5_bn has no head to choose"),
        ({"model": "mobilenet_v3_small", "head": "deep"}, UnknownChoice, "'deep' is unknown; there are linear, hidden"),
        ({"model": "mobilenet_v3_small", "optimiser": "lion"}, UnknownChoice, "'lion' is unknown"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_written(
    tmp_path: Path, small_spec: ExportSpec, change: dict[str, object], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        export_bundle(tmp_path / "bundle", replace(small_spec, **change), on_stage=never)  # type: ignore[arg-type]

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ([nn.Linear(48, 7)], r"gives \[2, 7\] for two rows; for 3 classes"),
        ([], "no FC layer"),
        ([nn.Dropout(0.5), nn.Linear(48, 3)], "operator '.*' is not among those"),
        ([nn.PReLU(), nn.Linear(48, 3)], "'1' .PReLU. has weights; only FC"),
        ([nn.Linear(48, 3).double()], "float64; float32 and int64"),
        (
            [nn.Linear(48, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)],
            "'2' .GroupNorm. has weights; only FC, Conv2d and Batch",
        ),
        ([nn.Linear(48, 3), nn.Hardsigmoid()], "the logits are not the output of '1', the FC layer"),
        ([Turned()], "the logits are not the output of '1.hidden', the FC layer that the model has last"),
        (
            [tied := nn.Linear(48, 48), nn.ReLU(), same(tied), nn.Linear(48, 3)],
            "'3.weight' is also a tensor of another",
        ),
        ([nn.Linear(48, 3), Named()], "gives a dict in evaluation mode"),
        ([nn.Linear(47, 3)], r"fails with its input, float32\[2, 3, 4, 4\]"),
    ],
)
def test_a_module_that_cannot_be_a_bundle_is_refused(tmp_path: Path, layers: list[nn.Module], reason: str) -> None:
    with pytest.raises(NotExportable, match=reason):
        whole_bundle(tmp_path / "bundle", *layers)

    assert list(tmp_path.iterdir()) == []


class Scaled(nn.Module):
    """A backbone with a buffer of whole numbers, and weights in another memory layout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.register_buffer("times", torch.tensor([3, 2, 1, 0]))

    def forward(self, photos: Tensor) -> Tensor:
        return self.conv(photos).mean((2, 3)) * self.times


@pytest.mark.slow
def test_a_backbone_may_have_whole_numbers_and_weights_in_any_memory_layout(tmp_path: Path) -> None:
    bundle = frozen_bundle(tmp_path / "bundle", Scaled(), features=4)

    frozen = Blob.open(bundle.part(bundle.manifest.frozen), bundle.manifest.frozen)
    assert list(frozen) == ["conv.bias", "conv.weight", "times"]
    assert frozen["times"].tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("backbone", "reason"),
    [
        (nn.Sequential(nn.Flatten(), Named()), "backbone gives a dict for a photo; features must be one tensor"),
        (nn.Flatten(2), r"backbone gives \[1, 3, 256\] for a photo"),
    ],
)
def test_a_backbone_that_gives_no_features_is_refused(tmp_path: Path, backbone: nn.Module, reason: str) -> None:
    with pytest.raises(NotExportable, match=reason):
        frozen_bundle(tmp_path / "bundle", backbone)

    assert list(tmp_path.iterdir()) == []
