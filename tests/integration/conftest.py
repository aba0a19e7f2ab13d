"""Fixtures of all federations of these tests."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from fedlens_export.models.classified import Classified
from fedlens_server.methods import bundle_settings
from fedlens_server.planning.task_settings import TaskSettings
from tests.integration import federation
from tests.integration.processes import ServerProcess
from tests.phone_photos import CIFAR10, first_of_each_class

NewBundle = Callable[..., Path]
FittingBundles = Callable[[str, Mapping[str, Any]], list[Path]]


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 handwritten digits as 8 x 8 PNG files, one folder a class."""
    root = tmp_path_factory.mktemp("photos")
    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images[:240], digits.target[:240], strict=True)):
        folder = root / str(label)
        folder.mkdir(exist_ok=True)
        Image.fromarray((image * 15).astype("uint8")).save(folder / f"{number:04}.png")
    return root


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 photos of CIFAR-10, one folder a class, named as the digits are, so that the same bundles take them."""
    if not CIFAR10.exists():
        pytest.skip("the CIFAR-10 photos are not beside the repository (../shared/data/cifar10-images.tar.xz)")
    root = tmp_path_factory.mktemp("cifar10")
    for label, photos in enumerate(first_of_each_class(24).values()):
        (root / str(label)).mkdir()
        for name, raw in photos.items():
            (root / str(label) / name).write_bytes(raw)
    return root


@pytest.fixture(params=["photos", pytest.param("cifar10", marks=pytest.mark.long)])
def images(request: pytest.FixtureRequest) -> Path:
    """The digits; in the long tests also the photos."""
    folder: Path = request.getfixturevalue(request.param)
    return folder


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of `federation.tiny_bundle`."""
    return federation.tiny_bundle(tmp_path_factory.mktemp("export") / "bundle").folder


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> NewBundle:
    """The bundle of a convolutional network, `small` or `wide`, with an objective and other settings of training."""

    @cache
    def export(name: str, objective: str, **training: Any) -> Path:
        channels = {"small": 3, "wide": 5}[name]
        torch.manual_seed(4)
        extractor = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(channels * ((federation.SIDE - 1) // 2) ** 2, 12),
        )
        folder = tmp_path_factory.mktemp(f"{name}-{objective}") / "bundle"
        model = Classified(extractor, nn.Linear(12, 10))
        return federation.digits_bundle(folder, model, name, objective=objective, **training).folder

    return export


@pytest.fixture(scope="session")
def public(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two digits of each class, as public photos."""
    root = tmp_path_factory.mktemp("public")
    for folder in sorted(photos.iterdir()):
        (root / folder.name).mkdir()
        for file in sorted(folder.iterdir())[:2]:
            copyfile(file, root / folder.name / file.name)
    return root


@pytest.fixture(scope="session")
def fitting(exported: NewBundle, public: Path) -> FittingBundles:
    """The bundles for a method and options; each program is exported once for all tests."""

    def bundles(method: str, options: Mapping[str, Any]) -> list[Path]:
        needed = bundle_settings(TaskSettings(method=method, rounds=1, population=1, options=dict(options)))
        training: dict[str, Any] = {"candidates": needed.candidates} if needed.candidates else {}
        training |= {"programs": needed.programs} if needed.programs else {}
        training |= {"public": public} if needed.public else {}
        ordinary = exported("small", needed.objective, **training)
        return [ordinary, exported("small", "cross_entropy", concatenated=3)] if method == "fedconcat" else [ordinary]

    return bundles


@pytest.fixture(scope="session")
def concatenating(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A network of two layers, with ONNX; and one classifier on at most three of its first layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        pixels = 3 * federation.SIDE * federation.SIDE
        model = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 16), nn.ReLU(), nn.Linear(16, 10))
    folder = tmp_path_factory.mktemp("export")
    return [
        federation.digits_bundle(folder / "ordinary", model, "two layers", onnx=True).folder,
        federation.digits_bundle(folder / "concatenated", model, "two layers", concatenated=3).folder,
    ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server of this test's own."""
    with ServerProcess.prepared(tmp_path / "server") as process:
        yield process
