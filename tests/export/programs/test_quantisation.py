"""A quantised backbone: the emulator computes what the phone does, and what is lost is told."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fedlens_export.errors import NotExportable, UnknownChoice
from fedlens_export.exporting import ExportSpec, Training, export_bundle, frozen_backbone_bundle
from fedlens_export.models import backbones, pretrain
from fedlens_export.network import CENTRED, IMAGENET
from fedlens_export.programs import calibration, pte_program, quantisation, steps
from fedlens_export.programs.quantisation import Quantised
from fedlens_export.report import FileReport
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb

CIFAR10 = Path(__file__).parents[4] / "shared" / "data" / "cifar10-images.tar.xz"
SIDE = 16
Draw = Callable[[int], list[Tensor]]


class Block(nn.Module):
    """Each kind of layer that the backbones by name have, but for EfficientNet's SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.apart = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Hardswish())
        self.squeeze = nn.Conv2d(8, 8, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, photos: Tensor) -> Tensor:
        x = self.pool(self.first(photos))
        y = self.apart(x)
        y = y * nn.functional.hardsigmoid(self.squeeze(nn.functional.adaptive_avg_pool2d(y, 1)))
        features: Tensor = (x + y).mean((2, 3))
        return features


def block() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Block().eval()


def draw(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 3, SIDE, SIDE, generator=generator) for _ in range(8)]


@pytest.fixture(scope="module")
def quantised() -> Quantised:
    return quantisation.quantise(block(), draw(0))


@pytest.mark.slow
def test_weights_lie_on_a_grid_of_255_levels_a_channel_under_their_layers_names(quantised: Quantised) -> None:
    tensors = steps.frozen_tensors(quantised.emulated)

    assert {"first.0.weight", "first.0.bias", "apart.0.weight", "squeeze.weight", "squeeze.bias"} == (
        set(tensors) - {"apart.0.bias"}
    )
    for channel in tensors["first.0.weight"]:
        levels = channel / (channel.abs().max() / 127)
        torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)


@pytest.mark.slow
def test_the_same_photos_give_the_same_numbers_and_leave_the_backbone_alone(quantised: Quantised) -> None:
    backbone = block()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}

    again = steps.frozen_tensors(quantisation.quantise(backbone, draw(0)).emulated)

    first = steps.frozen_tensors(quantised.emulated)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.state_dict().items())


@pytest.mark.slow
def test_the_emulated_backbone_is_near_the_float_one_but_not_equal(quantised: Quantised) -> None:
    with torch.no_grad():
        differences = [
            ((quantised.emulated(photo) - block()(photo)).norm() / block()(photo).norm()).item() for photo in draw(5)
        ]

    assert 1e-4 < max(differences) < 0.1


@pytest.mark.slow
def test_the_emulated_backbone_computes_what_the_phone_does(quantised: Quantised) -> None:
    source = steps.embed(quantised.emulated, CENTRED, (3, SIDE, SIDE))
    raw, _ = pte_program.lower("embed", quantised.program(CENTRED, (3, SIDE, SIDE)))
    phone = pte_program.load(source, raw)
    frozen = list(steps.frozen_tensors(quantised.emulated).values())

    with torch.no_grad():
        pairs = [
            (phone(*frozen, photo.sigmoid())[0].clone(), source.function(*frozen, photo.sigmoid())[0])
            for photo in draw(9)
        ]

    difference = torch.cat([(found - expected).abs() / expected.abs().max() for found, expected in pairs])
    # A sum just between two levels may fall either way, and so a few features are a level apart.
    assert (difference < 1e-6).double().mean() > 0.75
    assert difference.max() < 0.05


QUANTISED = """
from hashlib import sha256
from fedlens_export.programs import pte_program, quantisation, steps
from fedlens_export.network import CENTRED
from tests.export.programs.test_quantisation import SIDE, block, draw

quantised = quantisation.quantise(block(), draw(0))
source = steps.embed(quantised.emulated, CENTRED, (3, SIDE, SIDE))
raw, _ = pte_program.lower("embed", quantised.program(CENTRED, (3, SIDE, SIDE)))
frozen = list(steps.frozen_tensors(quantised.emulated).values())
phone = pte_program.load(source, raw)
features = [phone(*frozen, photo.sigmoid())[0].numpy().tobytes() for photo in draw(9)]
print(sha256(raw).hexdigest(), sha256(b"".join(features)).hexdigest())
"""


@pytest.mark.long
def test_another_process_quantises_to_the_same_program_which_computes_the_same_features() -> None:
    root = Path(__file__).parents[3]

    def digests(seed: str) -> str:
        # Another order of sets and of what is hashed by address must not show.
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", QUANTISED]
        return subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    first, second = digests("1"), digests("2")

    assert first == second
    assert len(first.split()) == 2


@pytest.fixture
def coloured(tmp_path: Path) -> Path:
    """Eight red and eight blue photos, and a file that is none."""
    rng = np.random.default_rng(0)
    for name, colour in (("blue", (40, 40, 200)), ("red", (200, 40, 40))):
        (tmp_path / name).mkdir()
        for i in range(8):
            noise = rng.integers(0, 50, (SIDE, SIDE, 3))
            Image.fromarray((noise + colour).astype(np.uint8)).save(tmp_path / name / f"{i}.png")
    (tmp_path / "red" / "damaged.png").write_bytes(b"no photo")
    return tmp_path


def test_of_few_photos_half_of_each_class_is_held_out(coloured: Path) -> None:
    found = calibration.load(coloured, SIDE)

    assert (found.seen.shape, found.held_out.shape) == ((8, 3, SIDE, SIDE), (8, 3, SIDE, SIDE))
    assert found.labels is not None and found.labels.tolist() == [0] * 4 + [1] * 4
    assert found.unreadable == 1


def test_of_many_photos_all_are_held_out_but_those_to_calibrate_by(
    coloured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two of each class are shown: every fourth of eight.
    monkeypatch.setattr(calibration, "MOST_OBSERVED", 4)

    found = calibration.load(coloured, SIDE)

    assert (len(found.seen), len(found.held_out)) == (4, 12)
    assert len(found.observed(CENTRED)) == 4


def test_few_photos_tell_how_near_the_features_are_but_no_accuracy(coloured: Path) -> None:
    found = calibration.load(coloured, SIDE)

    cost = calibration.cost(nn.Flatten(), nn.Flatten(), found, CENTRED, lambda stage: None)

    assert (cost.photos, cost.accuracy) == (8, None)
    assert cost.cosine == pytest.approx(1.0)
    assert "accuracy not measured: that needs class sub-folders and 100 photos" in str(cost)


def test_what_a_worse_backbone_loses_is_told_in_points(tmp_path: Path) -> None:
    # 120 photos, half of them held out; all blue or all red, which a backbone that gives nothing cannot tell apart.
    # Each fifth of the photos has as many of both, so that its heads always answer the first class.
    for name, colour in (("blue", (0, 0, 250)), ("red", (250, 0, 0))):
        (tmp_path / name).mkdir()
        for i in range(60):
            Image.new("RGB", (4, 4), colour).save(tmp_path / name / f"{i:02}.png")
    blind = nn.Sequential(nn.Flatten(), nn.Threshold(100.0, 1.0))

    cost = calibration.cost(nn.Flatten(), blind, calibration.load(tmp_path, 4), CENTRED, lambda stage: None)

    assert cost.accuracy == (1.0, 0.5)
    assert str(cost).startswith("50.0 points of top-1 lost: 50.0 % with a head trained on its features, 100.0 %")


def test_a_folder_without_a_readable_photo_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no photo")

    with pytest.raises(NotExportable, match=r"calibrate with in .*: none of 1 files can be read"):
        calibration.load(tmp_path, SIDE)


def asked(**changes: object) -> Training:
    settings = {"class_names": ("a", "b"), "batch": 4, "pte": True, "quantise": "int8", **changes}
    return Training(**settings)  # type: ignore[arg-type]  # tests give it what a command line does


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pte": False}, "add --target pte"),
        ({}, "a folder of photos with --calibrate DIR"),
        ({"calibrate": Path("gone")}, "no photos to calibrate with: gone is no folder"),
        ({"calibrate": Path(__file__).parent}, "no photos to calibrate with in programs"),
        ({"quantise": None, "calibrate": Path(__file__).parent}, "add --quantize int8"),
    ],
)
def test_what_does_not_go_together_is_refused_first(changes: dict[str, object], reason: str, tmp_path: Path) -> None:
    head = backbones.build_head("linear", 8, 2, seed=0)

    with pytest.raises(NotExportable, match=reason):
        frozen_backbone_bundle(tmp_path / "out", block(), head, asked(**changes), SIDE)

    assert not (tmp_path / "out").exists()


def test_an_unknown_scheme_is_refused(tmp_path: Path) -> None:
    spec = ExportSpec(model="resnet18", class_names=("a", "b"), pte=True, quantise="int4", calibrate=tmp_path)

    with pytest.raises(UnknownChoice, match="quantisation 'int4' is unknown; there are int8"):
        export_bundle(tmp_path / "out", spec)


def test_a_model_that_is_trained_as_a_whole_is_not_quantised(coloured: Path, tmp_path: Path) -> None:
    spec = ExportSpec(model="lenet5", class_names=("a", "b"), pte=True, quantise="int8", calibrate=coloured)

    with pytest.raises(NotExportable, match="take a frozen backbone"):
        export_bundle(tmp_path / "out", spec)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_exports_of_a_quantised_backbone_give_the_same_bytes(coloured: Path, tmp_path: Path) -> None:
    files: list[FileReport] = []
    stages: list[str] = []
    head = backbones.build_head("linear", 8, 2, seed=0)

    def export(name: str) -> Bundle:
        training = asked(calibrate=coloured, onnx=True)
        return frozen_backbone_bundle(
            tmp_path / name, block(), head, training, SIDE, on_stage=stages.append, on_file=files.append
        )

    first, second = export("first"), export("second")

    assert first.id == second.id
    embedded = {file.format: file for file in files if file.program == "embed"}
    assert set(embedded) == {pb.PROGRAM_FORMAT_PT2, pb.PROGRAM_FORMAT_PTE, pb.PROGRAM_FORMAT_ONNX}
    assert embedded[pb.PROGRAM_FORMAT_PT2].difference == 0.0
    assert {kind: file.allowed for kind, file in embedded.items()} == {
        pb.PROGRAM_FORMAT_PT2: "1e-05",
        pb.PROGRAM_FORMAT_PTE: "1e-05, or 0.5 of what quantising changes",
        pb.PROGRAM_FORMAT_ONNX: "1e-05, or 0.5 of what quantising changes",
    }
    assert [stage for stage in stages if stage.startswith("note: int8: cosine of its features")]
    assert "first.0.weight" in Blob.open(first.part(first.manifest.frozen))


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of each of five classes, 60 photos to train a backbone on, and 200 others."""
    if not CIFAR10.exists():
        pytest.skip("the CIFAR-10 photos are not beside the repository (../shared/data/cifar10-images.tar.xz)")
    root = tmp_path_factory.mktemp("cifar10")
    public, own = root / "public", root / "own"
    wanted = dict.fromkeys(("airplane", "automobile", "cat", "frog", "ship"), 260)
    with tarfile.open(CIFAR10) as archive:
        for member in archive:
            name = Path(member.name).parent.name
            if wanted.get(name, 0) and member.isfile() and (content := archive.extractfile(member)):
                folder = (public if wanted[name] > 200 else own) / name
                folder.mkdir(parents=True, exist_ok=True)
                (folder / Path(member.name).name).write_bytes(content.read())
                wanted[name] -= 1
            if not any(wanted.values()):
                break
    return public, own


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several threads on busy cores mostly wait for each other, and batches of one photo gain nothing by them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_head_on_the_quantised_backbone_loses_at_most_a_point_on_photos(
    cifar10: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    public, own = cifar10
    # Of few photos each would be a good part of a point.
    monkeypatch.setattr(calibration, "MOST_PHOTOS", 1000)
    backbone = backbones.build("resnet18", 32, seed=0)
    pretrain.train(backbone, public, 32, IMAGENET, epochs=3, seed=0, on_stage=lambda stage: None)
    found = calibration.load(own, 32)

    emulated = quantisation.quantise(backbone, found.observed(IMAGENET)).emulated
    cost = calibration.cost(backbone, emulated, found, IMAGENET, lambda stage: None)

    # Of 200 photos in each of five classes every 16th calibrates: 13.
    assert cost.photos == 1000 - 5 * 13
    assert cost.accuracy is not None
    before, after = cost.accuracy
    assert before > 0.4  # five classes: chance is 0.2
    assert before - after <= 0.01
    assert cost.cosine > 0.99
