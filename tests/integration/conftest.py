"""What all federations of these tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.integration import federation
from tests.integration.processes import ServerProcess


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
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of `federation.tiny_bundle`."""
    return federation.tiny_bundle(tmp_path_factory.mktemp("export") / "bundle").folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server of this test's own."""
    with ServerProcess.prepared(tmp_path / "server") as process:
        yield process
