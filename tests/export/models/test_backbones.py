"""Origins of a backbone's weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision  # type: ignore[import-untyped]
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from fedlens_export.errors import NotExportable, UnknownChoice, WeightsUnusable
from fedlens_export.models import backbones, pretrain
from fedlens_export.network import IMAGENET

NAME = "mobilenet_v3_small"


class MakesFile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.marker,))


def fresh() -> nn.Module:
    return backbones.build(NAME, 32, seed=0)


def first_convolution(backbone: nn.Module) -> torch.Tensor:
    return backbone.get_parameter("features.0.0.weight").detach().clone()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_are_read_from_either_kind_of_file(suffix: str, weights_file: Path, tmp_path: Path) -> None:
    state = torch.load(weights_file, weights_only=True)
    path = tmp_path / f"w{suffix}"
    torch.save(state, path) if suffix == ".pth" else save_file(state, path)
    backbone = fresh()

    backbones.load_weights(NAME, backbone, path)

    assert torch.equal(first_convolution(backbone), state["features.0.0.weight"])
    assert not torch.equal(first_convolution(backbone), first_convolution(fresh()))


def test_a_file_that_runs_code_is_not_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    torch.save({"features.0.0.weight": MakesFile(marker)}, tmp_path / "w.pth")

    with pytest.raises(WeightsUnusable, match=r"w\.pth is no plain dict of tensors, and is not loaded") as refused:
        backbones.load_weights(NAME, fresh(), tmp_path / "w.pth")

    assert not marker.exists()
    assert "weights_only" not in str(refused.value)


def damaged_state(change: str) -> dict[str, object]:
    state: dict[str, object] = dict(fresh().state_dict())
    name = "features.0.0.weight"
    changes: dict[str, dict[str, object]] = {
        "missing": {},
        "unknown": {"backbone.extra": torch.ones(1)},
        "shape": {name: torch.ones(2, 2)},
        "nan": {name: torch.full((16, 3, 3, 3), float("nan"))},
        "no tensor": {name: "text"},
    }
    if change == "missing":
        del state[name]
    return {**state, **changes[change]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("missing", r"1 tensors are missing, the first is 'features\.0\.0\.weight'"),
        ("unknown", r"has no tensor 'backbone\.extra'"),
        ("shape", r"'features\.0\.0\.weight' is \[2, 2\], not \[16, 3, 3, 3\]"),
        ("nan", "holds a NaN"),
        ("no tensor", "is str, not"),
    ],
)
def test_weights_that_do_not_fit_are_named(change: str, reason: str, tmp_path: Path) -> None:
    torch.save(damaged_state(change), tmp_path / "w.pth")

    with pytest.raises(WeightsUnusable, match=reason):
        backbones.load_weights(NAME, fresh(), tmp_path / "w.pth")


@pytest.mark.parametrize("name", ["gone.pth", "empty.pth", "text.pth", "text.safetensors", "list.pth"])
def test_a_file_without_weights_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty.pth").touch()
    (tmp_path / "text.pth").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    torch.save([1, 2], tmp_path / "list.pth")

    with pytest.raises(WeightsUnusable, match=name):
        backbones.load_weights(NAME, fresh(), tmp_path / name)


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    # Nothing listens on the discard port of this machine.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")

    with pytest.raises(WeightsUnusable, match=r"cannot be downloaded .*--backbone-weights FILE.*--pretrain DIR"):
        backbones.load_pretrained("mobilenet_v3_small", fresh())


# torchvision's whole networks, classifier and auxiliary heads included, are what a user has a file of.
@pytest.mark.parametrize(
    ("name", "torchvisions", "features"),
    [
        ("resnet18", "resnet18", 512),
        ("shufflenet_v2", "shufflenet_v2_x1_0", 1024),
        ("googlenet", "googlenet", 1024),
        ("alexnet", "alexnet", 256),
        ("mobilenet_v3_small", "mobilenet_v3_small", 576),
        ("mobilenet_v2", "mobilenet_v2", 1280),
        ("mobilenet_v3_large", "mobilenet_v3_large", 960),
        ("efficientnet_b0", "efficientnet_b0", 1280),
    ],
)
def test_a_backbone_takes_torchvisions_file(name: str, torchvisions: str, features: int, tmp_path: Path) -> None:
    options = {"init_weights": False} if name == "googlenet" else {}
    given = torchvision.models.get_model(torchvisions, weights=None, **options)
    torch.save(given.state_dict(), tmp_path / "w.pth")
    backbone = backbones.build(name, 64, seed=0)

    backbones.load_weights(name, backbone, tmp_path / "w.pth")

    with torch.no_grad():
        assert backbone(torch.zeros(1, 3, 64, 64)).shape == (1, features)
    assert all(torch.equal(tensor, given.state_dict()[key]) for key, tensor in backbone.state_dict().items())


def test_googlenet_gets_photos_normalised_as_its_weights_want_them() -> None:
    # torchvision sets this where it loads the weights.
    assert backbones.build("googlenet", 32, seed=0).transform_input is True


@pytest.mark.parametrize(("name", "least"), [("mobilenet_v3_small", 32), ("alexnet", 63)])
def test_a_photo_too_small_for_the_backbone_is_refused(name: str, least: int) -> None:
    with torch.no_grad():
        backbones.build(name, least, seed=0)(torch.zeros(1, 3, least, least))

    with pytest.raises(NotExportable, match=f"at least {least} pixels a side, not {least - 1}"):
        backbones.build(name, least - 1, seed=0)


def test_an_unknown_head_is_refused() -> None:
    with pytest.raises(UnknownChoice, match="'deep' is unknown; there are linear, hidden"):
        backbones.build_head("deep", 576, 3, seed=0)


@pytest.fixture(scope="module")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen photos of each of two colours, and one that is damaged."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name, colour in (("blue", (40, 40, 200)), ("red", (200, 40, 40))):
        (root / name).mkdir()
        for i in range(16):
            noise = rng.integers(0, 50, (32, 32, 3))
            Image.fromarray((noise + colour).astype(np.uint8)).save(root / name / f"{i}.png")
    (root / "red" / "damaged.png").write_bytes(b"no photo")
    return root


def test_pretraining_learns_and_is_reproducible(coloured: Path) -> None:
    trained: list[nn.Module] = []
    stages: list[str] = []
    for _ in range(2):
        backbone = fresh()
        pretrain.train(backbone, coloured, 32, IMAGENET, epochs=2, seed=3, on_stage=stages.append)
        trained.append(backbone)

    losses = [float(stage.rpartition(" ")[2]) for stage in stages]
    assert stages[0].startswith("pretraining: epoch 1 of 2, loss ")
    assert losses[1] < losses[0]
    assert losses[:2] == losses[2:]
    assert torch.equal(first_convolution(trained[0]), first_convolution(trained[1]))
    assert not torch.equal(first_convolution(trained[0]), first_convolution(fresh()))
    assert not trained[0].training


@pytest.mark.parametrize("folders", [(), ("only",)])
def test_pretraining_needs_photos_of_two_classes(folders: tuple[str, ...], tmp_path: Path) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / name / "a.png")

    with pytest.raises(NotExportable, match="at least two classes"):
        pretrain.train(fresh(), tmp_path, 32, IMAGENET, epochs=1, seed=0, on_stage=print)


def test_a_folder_for_pretraining_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match="gone is no folder"):
        pretrain.train(fresh(), tmp_path / "gone", 32, IMAGENET, epochs=1, seed=0, on_stage=print)
