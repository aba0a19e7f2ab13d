from pathlib import Path

import pytest

from fedlens_edge_client.emulation.partitions import PhotoPool
from tests.edge_client.photo_folders import write_files

CLASSES = ("cat", "dog", "owl")


@pytest.fixture
def pool(tmp_path: Path) -> PhotoPool:
    """40 train and 8 test photos of each of three classes."""
    write_files(tmp_path / "train", dict.fromkeys(CLASSES, 40))
    write_files(tmp_path / "test", dict.fromkeys(CLASSES, 8))
    return PhotoPool.open(tmp_path)
