from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_edge_client.errors import AlbumError
from fedlens_edge_client.storage.album import Photo
from fedlens_proto import photos
from tests.edge_client.photo_folders import add_photos

GREY = 128


@pytest.fixture
def pool(tmp_path: Path) -> PhotoPool:
    """Twelve train and four test photos of either class, of one grey each."""
    for part, count in (("train", 12), ("test", 4)):
        for label in ("cat", "dog"):
            folder = tmp_path / "photos" / part / label
            folder.mkdir(parents=True)
            for index in range(count):
                picture = Image.new("RGB", (48, 48), (GREY, GREY, GREY))
                picture.putpixel((0, 0), (index, len(part), len(folder.name) + ord(label[0])))
                picture.save(folder / f"{index}.png")
    return PhotoPool.open(tmp_path / "photos")


def skewed(pool: PhotoPool, index: int, made: Path, *, clients: int = 4, sigma: float = 0.2) -> tuple[Photo, ...]:
    partition = Partition(name=PartitionName.FEATURE_SKEW, seed=3, clients=clients, sigma=sigma)
    return partition.album(pool, index, made).photos(1).photos


def deviation(held: tuple[Photo, ...]) -> float:
    pixels = np.stack([photos.load(photo.path, 48, 48) for photo in held]).astype(float)
    return float((pixels - GREY)[:, :, 1:, 1:].std())


def test_each_client_has_noise_of_its_own_strength(pool: PhotoPool, tmp_path: Path) -> None:
    deviations = [deviation(skewed(pool, index, tmp_path / "made")) for index in range(4)]

    # Client i of 4 at sigma 0.2: 255 * 0.2 * i / 4 = 12.75 i. Of client 3 (38.25), what is beyond the range, 3.3
    # deviations away, is clipped. Eight photos of 3 * 47 * 47 values: 1 % is 3 standard errors.
    np.testing.assert_allclose(deviations, [0, 12.75, 25.5, 38.25], rtol=0.01)


def test_all_photos_are_divided_evenly_to_train_on_and_to_test_with(pool: PhotoPool, tmp_path: Path) -> None:
    held = [skewed(pool, index, tmp_path / "made", sigma=0) for index in range(4)]

    # 24 train and 8 test photos for four clients; test photos by class, in cuts rounded down.
    assert [sum(not photo.is_test for photo in mine) for mine in held] == [6] * 4
    assert len({photo.path for mine in held for photo in mine}) == 32


def test_noisy_photos_are_files_with_the_digests_that_the_album_tells(pool: PhotoPool, tmp_path: Path) -> None:
    held = skewed(pool, 2, tmp_path / "made")

    assert all(photo.path.is_relative_to(tmp_path / "made") for photo in held)
    assert {photo.digest for photo in held} == {sha256(photo.path.read_bytes()).digest() for photo in held}
    assert len({photo.digest for photo in held}) == len(held)


def test_noise_is_the_same_wherever_and_whenever_it_is_made(pool: PhotoPool, tmp_path: Path) -> None:
    first = skewed(pool, 1, tmp_path / "made")
    kept = skewed(pool, 1, tmp_path / "made")
    elsewhere = skewed(pool, 1, tmp_path / "elsewhere")

    assert kept == first
    assert [photo.digest for photo in elsewhere] == [photo.digest for photo in first]


def test_a_copy_is_made_once(pool: PhotoPool, tmp_path: Path) -> None:
    before = {photo.path: photo.path.stat().st_mtime_ns for photo in skewed(pool, 1, tmp_path / "made")}

    after = {photo.path: photo.path.stat().st_mtime_ns for photo in skewed(pool, 1, tmp_path / "made")}

    assert after == before


def test_the_first_clients_photos_are_the_originals(pool: PhotoPool, tmp_path: Path) -> None:
    held = skewed(pool, 0, tmp_path / "made")

    assert all(photo.path.is_relative_to(pool.root) for photo in held)
    assert not (tmp_path / "made").exists()


def test_large_photos_become_smaller_before_noise_is_added(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            add_photos(tmp_path / "photos" / part, label, 2, side=300)

    held = skewed(PhotoPool.open(tmp_path / "photos"), 1, tmp_path / "made", clients=2)

    assert {photos.shorter_side(photo.path) for photo in held} == {256}


def test_a_photo_that_cannot_be_decoded_stays_for_the_client_to_tell_of(pool: PhotoPool, tmp_path: Path) -> None:
    damaged = pool.root / "train" / "cat" / "0.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    pool = PhotoPool.open(pool.root)

    held = skewed(pool, 1, tmp_path / "made", clients=2) + skewed(pool, 0, tmp_path / "made", clients=2)

    assert [photo.path for photo in held].count(damaged) == 1


def test_a_folder_that_cannot_hold_copies_is_named(pool: PhotoPool, tmp_path: Path) -> None:
    (tmp_path / "made").write_text("a file")

    with pytest.raises(AlbumError, match=r"noisy copies of photos cannot be kept in .*made"):
        skewed(pool, 1, tmp_path / "made")
