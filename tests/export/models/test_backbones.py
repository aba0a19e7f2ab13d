"""Origins of a backbone's weights."""

from pathlib import Path

import pytest
import torch
import torchvision  # type: ignore[import-untyped]
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from fedlens_export.errors import NotExportable, WeightsUnusable
from fedlens_export.models import backbones, pretrain
from fedlens_export.network import IMAGENET
from tests.proto.programs.pt2_attacks import MakesFile

NAME = "mobilenet_v3_small"


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


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone.pth", "cannot be read: there is no such file"),
        ("empty.pth", "cannot be read as a state dict: it is damaged, or torch.save did not write it"),
        ("text.pth", "cannot be read as a state dict: it is damaged, or torch.save did not write it"),
        ("text.safetensors", "cannot be read as a state dict: "),
        ("list.pth", "it holds a list, not a dict of tensors"),
        ("no tensor.pth", "'a' is str, not a tensor by name"),
    ],
)
def test_a_file_without_weights_is_refused_by_name(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "empty.pth").touch()
    (tmp_path / "text.pth").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"a": "text"}, tmp_path / "no tensor.pth")

    with pytest.raises(WeightsUnusable, match=f"{name}.*{reason}"):
        backbones.load_weights(NAME, fresh(), tmp_path / name)


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    # Nothing listens on the discard port of this machine.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")

    with pytest.raises(WeightsUnusable, match=r"cannot be downloaded .*--backbone-weights FILE.*--pretrain DIR"):
        backbones.load_pretrained("mobilenet_v3_small", fresh())


# torchvision's whole networks, classifier and auxiliary heads included, are what a user has a file of.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "torchvisions", "features"),
    [
        ("resnet18", "resnet18", 512),
        ("resnet50", "resnet50", 2048),
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


def test_pretraining_learns_and_is_reproducible(coloured: Path) -> None:
    trained: list[nn.Module] = []
    stages: list[str] = []
    for _ in range(2):
        backbone = fresh()
        pretrain.train(backbone, coloured, 32, IMAGENET, epochs=2, seed=3, on_stage=stages.append)
        trained.append(backbone)

    epochs = [stage for stage in stages if stage.startswith("pretraining: epoch ")]
    losses = [float(stage.rpartition(" ")[2]) for stage in epochs]
    assert set(stages) - set(epochs) == {"note: left out of pretraining, because unreadable: 1"}
    assert epochs[0].startswith("pretraining: epoch 1 of 2, loss ")
    assert losses[1] < losses[0]
    assert losses[:2] == losses[2:]
    assert torch.equal(first_convolution(trained[0]), first_convolution(trained[1]))
    assert not torch.equal(first_convolution(trained[0]), first_convolution(fresh()))
    assert not trained[0].training


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("gone", "gone is no folder"),
        ("one", "photos in 0 class folders .* two classes"),
        (".", "1 readable .* two classes"),
    ],
)
def test_pretraining_needs_photos_of_two_classes(folder: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "one" / "a.png")

    with pytest.raises(NotExportable, match=reason):
        pretrain.train(fresh(), tmp_path / folder, 32, IMAGENET, epochs=1, seed=0, on_stage=print)
