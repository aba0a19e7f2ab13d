"""Photos of every kind are read once, on several processes, and those that cannot be read are known."""

from hashlib import sha256
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedlens.demo.embedding import EmbeddingFailed, embed
from fedlens_edge_client.client.client import DEFAULT_CACHE_BYTES
from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.storage.album import Photo
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.training.features import space
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2

pytestmark = pytest.mark.slow

KINDS = {
    "grey.png": Image.new("L", (40, 30), 128),
    "sixteen-bit.png": Image.fromarray(np.full((30, 40), 40_000, np.uint16)),
    "cmyk.jpg": Image.new("CMYK", (40, 30), (200, 10, 10, 0)),
    "transparent.png": Image.new("RGBA", (40, 30), (200, 10, 10, 100)),
    "one-pixel.png": Image.new("RGB", (1, 1), (200, 10, 10)),
    "wide.jpg": Image.new("RGB", (6000, 40), (10, 10, 200)),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Photo]:
    folder = tmp_path_factory.mktemp("photos") / "cat"
    folder.mkdir()
    for name, picture in KINDS.items():
        picture.save(folder / name)
    (folder / "damaged.jpg").write_bytes(b"no photo")
    (folder / "cut.jpg").write_bytes((folder / "wide.jpg").read_bytes()[:300])
    return [
        Photo(sha256(path.read_bytes()).digest(), 0, "cat", path, is_test=False) for path in sorted(folder.iterdir())
    ]


def test_every_photo_that_can_be_read_is_and_is_read_once(phone: Bundle, photos: list[Photo], tmp_path: Path) -> None:
    def run(processes: int) -> tuple[set[bytes], int]:
        return embed(phone, EngineName.TORCH, photos, tmp_path, processes, Console(file=StringIO()))

    first, again = run(2), run(1)

    names = {photo.digest: photo.path.name for photo in photos}
    assert {names[digest] for digest in first[0]} == set(KINDS)
    assert first[1] == 0
    assert again == (first[0], len(KINDS))
    cache = FeatureCache.in_folder(tmp_path, DEFAULT_CACHE_BYTES)
    found = cache.get(space(phone.manifest, manifest_pb2.PROGRAM_FORMAT_PT2), [photo.digest for photo in photos])
    cache.close()
    # 2 x 2 means of three colours.
    assert {len(value) for value in found.values()} == {4 * 12}


def test_a_backbone_that_cannot_be_run_ends_the_demo_with_the_reason(
    phone: Bundle, photos: list[Photo], tmp_path: Path
) -> None:
    bundle = Bundle(phone.manifest, phone.raw, tmp_path / "empty")

    with pytest.raises(EmbeddingFailed, match="photos cannot be embedded: "):
        embed(bundle, EngineName.TORCH, photos, tmp_path / "features", 1, Console(file=StringIO()))
