from collections import Counter
from pathlib import Path

import pytest

from fedlens_edge_client.emulation.partitions import (
    Partition,
    PartitionName,
    PhotoPool,
    PoolUnusable,
    TooFewPhotos,
)
from fedlens_edge_client.emulation.partitions.filling import FillingAlbum
from fedlens_edge_client.storage.album import Album, AlbumSnapshot
from tests.edge_client.emulation.conftest import CLASSES
from tests.edge_client.photo_folders import write_clients, write_files

CHANGING = (PartitionName.CAMERA_IID, PartitionName.CAMERA_NONIID, PartitionName.ALBUM)


def partition(name: PartitionName, seed: int = 1) -> Partition:
    return Partition(name=name, seed=seed, per_class=5)


def train_labels(snapshot: AlbumSnapshot) -> Counter[str]:
    return Counter(photo.label for photo in snapshot.photos if not photo.is_test)


@pytest.mark.parametrize("name", CHANGING)
def test_a_partition_is_a_pure_function_of_seed_client_and_round(pool: PhotoPool, name: PartitionName) -> None:
    in_order = [partition(name).album(pool, 3).photos(r) for r in (1, 2, 3)]
    asked_backwards = [partition(name).album(pool, 3).photos(r) for r in (3, 2, 1)]

    assert in_order == asked_backwards[::-1]
    assert partition(name, seed=2).album(pool, 3).photos(1) != in_order[0]
    assert partition(name).album(pool, 4).photos(1) != in_order[0]
    assert in_order[0] != in_order[1]


@pytest.mark.parametrize("name", CHANGING)
def test_every_album_entry_is_unique_and_test_photos_stay_apart(pool: PhotoPool, name: PartitionName) -> None:
    photos = partition(name).album(pool, 0).photos(7).photos

    assert len({(photo.digest, photo.copy) for photo in photos}) == len(photos)
    assert {photo.path.parts[-3] for photo in photos if photo.is_test} == {"test"}
    assert {photo.path.parts[-3] for photo in photos if not photo.is_test} == {"train"}


@pytest.mark.parametrize("name", CHANGING)
def test_a_client_keeps_its_test_photos_over_the_rounds(pool: PhotoPool, name: PartitionName) -> None:
    album = partition(name).album(pool, 2)

    first, later = ([p for p in album.photos(r).photos if p.is_test] for r in (1, 9))

    # A fifth of 5 per class is 1 per class.
    assert [photo.label for photo in first] == list(CLASSES)
    assert first == later


@pytest.mark.parametrize("name", CHANGING)
def test_a_client_has_photos_to_offer_before_its_first_round(pool: PhotoPool, name: PartitionName) -> None:
    # As a check-in counts them; a task takes no client that offers none.
    assert set(train_labels(partition(name).album(pool, 0).photos(0))) == set(CLASSES)


def test_iid_cameras_hold_exactly_n_photos_of_each_class(pool: PhotoPool) -> None:
    album = partition(PartitionName.CAMERA_IID).album(pool, 0)

    assert [train_labels(album.photos(r)) for r in range(1, 6)] == [Counter(dict.fromkeys(CLASSES, 5))] * 5


def test_noniid_cameras_hold_one_to_twice_n_photos_of_each_class(pool: PhotoPool) -> None:
    albums = [partition(PartitionName.CAMERA_NONIID).album(pool, i) for i in range(20)]

    counts = Counter(n for album in albums for r in range(1, 11) for n in train_labels(album.photos(r)).values())

    # 20 clients x 10 rounds x 3 classes = 600 draws, each of 1..10 with probability 1/10: 60 +- 7.3; 6 sigma is 44.
    assert set(counts) == set(range(1, 11))
    assert all(abs(count - 60) <= 44 for count in counts.values())


def test_cameras_reach_every_photo_of_a_class(pool: PhotoPool) -> None:
    album = partition(PartitionName.CAMERA_IID).album(pool, 0)

    seen = {photo.path for r in range(1, 101) for photo in album.photos(r).photos if not photo.is_test}

    # Missed by 100 draws of 5 out of 40: (35/40)^100 = 1.6e-6 for each of 120 photos.
    assert len(seen) == 120


def filling(pool: PhotoPool, *, limit: int, mislabelled: float = 0.0) -> FillingAlbum:
    return FillingAlbum(pool, 1, 0, per_class=5, limit=limit, mislabelled=mislabelled, test_per_class=1)


def test_an_album_is_the_newest_arrivals_of_a_replay_from_the_first_round(pool: PhotoPool) -> None:
    album = filling(pool, limit=30)
    replayed: list[Path] = []
    for arrival in (a for r in range(1, 13) for a in album.arrivals(r)):
        # A photo that arrives again counts as new; beyond the limit the oldest goes.
        replayed = [*(path for path in replayed if path != arrival.photo.path), arrival.photo.path][-30:]

    direct = [photo.path for photo in album.photos(12).photos if not photo.is_test]

    assert direct == replayed


def test_an_album_fills_up_to_its_limit_and_stays_there(pool: PhotoPool) -> None:
    album = filling(pool, limit=30)

    sizes = [train_labels(album.photos(r)).total() for r in range(1, 9)]

    # At least 3 arrive in a round; by round 8 the 16.5 a round on average have long filled 30 places.
    assert sizes == sorted(sizes)
    assert sizes[-1] == 30


def test_wrong_labels_of_an_album_are_corrected_within_three_rounds(pool: PhotoPool) -> None:
    album = filling(pool, limit=1000, mislabelled=1.0)
    arrivals = album.arrivals(1)

    assert all(a.label_in(1) != a.label for a in arrivals)
    assert {a.corrected for a in arrivals} <= {2, 3, 4}
    assert all(a.label_in(4) == a.label for a in arrivals)


def test_a_share_of_an_albums_labels_is_wrong_at_first(pool: PhotoPool) -> None:
    album = filling(pool, limit=1000, mislabelled=0.2)
    arrivals = [arrival for r in range(1, 61) for arrival in album.arrivals(r)]

    wrong = sum(arrival.first_label != arrival.label for arrival in arrivals)

    # About 60 x 16.5 = 990 arrivals, 0.2 +- 0.0127 of them; 5 sigma either side.
    assert 0.136 < wrong / len(arrivals) < 0.264


def test_one_photo_in_five_is_held_out_of_a_folder_without_a_split(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_files(tmp_path / "photos", {"cat": 10, "dog": 11}))

    # A fifth, rounded up: 2 of 10, 3 of 11.
    assert [len(members) for members in pool.test] == [2, 3]
    assert [len(members) for members in pool.train] == [8, 8]


def test_equal_files_are_held_out_together(tmp_path: Path) -> None:
    root = write_files(tmp_path / "photos", {"cat": 10, "dog": 10})
    for path in sorted((root / "cat").iterdir()):
        path.with_stem(f"again-{path.stem}").write_bytes(path.read_bytes())

    pool = PhotoPool.open(root)

    train, test = ({photo.digest for photo in side[0]} for side in (pool.train, pool.test))
    assert len(pool.test[0]) == 4
    assert not train & test


def test_the_evaluator_holds_every_test_photo_and_no_other(pool: PhotoPool) -> None:
    photos = partition(PartitionName.CAMERA_IID).evaluator_album(pool).photos(3).photos

    assert Counter(photo.label for photo in photos) == Counter(dict.fromkeys(CLASSES, 8))
    assert all(photo.is_test for photo in photos)


def test_files_that_are_no_photos_or_cannot_be_read_are_named(tmp_path: Path) -> None:
    root = write_files(tmp_path / "photos", {"cat": 5, "dog": 5})
    (root / "cat" / "IMG_1.HEIC").write_bytes(b"?")
    (root / "dog" / "gone.png").symlink_to(tmp_path / "nowhere.png")

    heic, unreadable = sorted(PhotoPool.open(root).skipped.items())

    assert (heic[0][:4], heic[1]) == ("HEIC", ("cat/IMG_1.HEIC",))
    assert unreadable == ("files that cannot be read", ("dog/gone.png",))


@pytest.mark.parametrize(
    ("name", "needed"), [(PartitionName.CAMERA_IID, 5), (PartitionName.CAMERA_NONIID, 10), (PartitionName.ALBUM, 10)]
)
def test_too_few_photos_name_the_class_and_the_least_number(tmp_path: Path, name: PartitionName, needed: int) -> None:
    write_files(tmp_path / "train", {"cat": 40, "dog": 4})
    write_files(tmp_path / "test", {"cat": 8, "dog": 8})

    with pytest.raises(TooFewPhotos, match=rf"class 'dog' has 4 train photos in .*, at least {needed} are needed"):
        partition(name).album(PhotoPool.open(tmp_path), 0)


def test_a_folder_with_one_class_is_refused_with_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(PoolUnusable, match="two or more classes; found cat"):
        PhotoPool.open(write_files(tmp_path, {"cat": 5}))


def test_a_class_without_its_test_folder_is_named(tmp_path: Path) -> None:
    write_files(tmp_path / "train", {"cat": 5, "dog": 5})
    write_files(tmp_path / "test", {"cat": 5})

    with pytest.raises(PoolUnusable, match=r"class 'dog' has no folder in .*test"):
        PhotoPool.open(tmp_path)


def test_every_partition_gives_an_album(tmp_path: Path) -> None:
    # Of 3 x 17 of a class at least 10 are train photos, as cameras and albums may draw.
    owners = ("anna", "ben", "carl")
    pool = PhotoPool.open(write_clients(tmp_path / "photos", {owner: dict.fromkeys(CLASSES, 17) for owner in owners}))
    partitions = [Partition(name=name, seed=1, clients=3, per_class=5) for name in PartitionName]
    albums: list[Album] = [partition.album(pool, 0, tmp_path / "made") for partition in partitions]

    assert all(album.photos(1).photos for album in albums)
