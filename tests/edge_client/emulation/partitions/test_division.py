from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from numpy.random import RandomState

from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool, Unservable, splits
from fedlens_edge_client.storage.album import Photo
from tests.edge_client.emulation.conftest import CLASSES
from tests.edge_client.photo_folders import write_files

CLIENTS = 4
DIVIDED = (PartitionName.DIRICHLET, PartitionName.CLASSES, PartitionName.TWO_CLASSES, PartitionName.POOLED_HALVES)
WITH_TEST_SIDE = tuple(name for name in DIVIDED if name is not PartitionName.POOLED_HALVES)


def partition(name: PartitionName, seed: int = 1, clients: int = CLIENTS, **settings: float) -> Partition:
    if name in (PartitionName.DIRICHLET, PartitionName.POOLED_HALVES):
        settings = {"min_photos": 5} | settings
    return Partition.of(name, settings, seed=seed, clients=clients)


def photos_of(chosen: Partition, pool: PhotoPool, index: int) -> tuple[Photo, ...]:
    return chosen.album(pool, index).photos(1).photos


def everyone(chosen: Partition, pool: PhotoPool) -> list[tuple[Photo, ...]]:
    return [photos_of(chosen, pool, index) for index in range(chosen.clients or 0)]


def side(photos: Iterable[Photo], *, is_test: bool) -> list[Photo]:
    return [photo for photo in photos if photo.is_test is is_test]


def labels_of(photos: Iterable[Photo]) -> Counter[str]:
    return Counter(photo.label for photo in photos)


@pytest.mark.parametrize("name", DIVIDED)
def test_a_client_keeps_its_photos_over_the_rounds(pool: PhotoPool, name: PartitionName) -> None:
    album = partition(name).album(pool, 1)

    assert album.photos(0) == album.photos(1) == album.photos(9)


@pytest.mark.parametrize("name", DIVIDED)
def test_a_division_is_a_pure_function_of_seed_and_client(tmp_path: Path, pool: PhotoPool, name: PartitionName) -> None:
    again = PhotoPool.open(tmp_path)

    assert everyone(partition(name), pool) == everyone(partition(name), again)
    assert everyone(partition(name), pool) != everyone(partition(name, seed=2), pool)


@pytest.mark.parametrize("name", DIVIDED)
def test_every_album_entry_is_unique_and_test_photos_stay_apart(pool: PhotoPool, name: PartitionName) -> None:
    for photos in everyone(partition(name), pool):
        assert len({(photo.digest, photo.copy) for photo in photos}) == len(photos)
        trained, tested = ({p.digest for p in side(photos, is_test=is_test)} for is_test in (False, True))
        assert not trained & tested


@pytest.mark.parametrize("name", [PartitionName.DIRICHLET, PartitionName.CLASSES])
def test_every_photo_is_one_clients(pool: PhotoPool, name: PartitionName) -> None:
    held = [photo for photos in everyone(partition(name), pool) for photo in photos]

    # 3 classes of 40 to train on and 8 to test with.
    assert labels_of(side(held, is_test=False)) == dict.fromkeys(CLASSES, 40)
    assert labels_of(side(held, is_test=True)) == dict.fromkeys(CLASSES, 8)
    assert len({photo.path for photo in held}) == 144


def test_the_seed_is_that_of_the_authors_generators(pool: PhotoPool) -> None:
    photos = [photo for members in pool.train for photo in members]
    labels = np.repeat(np.arange(3), 40)

    held = everyone(partition(PartitionName.DIRICHLET, seed=7, beta=0.3), pool)

    shares = splits.dirichlet(labels, CLIENTS, 0.3, 5, RandomState(7))
    assert [[photo.path for photo in side(mine, is_test=False)] for mine in held] == [
        [photos[i].path for i in share] for share in shares
    ]


def test_the_number_of_test_photos_changes_no_train_photos(pool: PhotoPool) -> None:
    many, few = (everyone(partition(PartitionName.DIRICHLET, test_photos=n), pool) for n in (6, 2))

    assert [side(photos, is_test=False) for photos in many] == [side(photos, is_test=False) for photos in few]


def test_a_client_with_one_class_has_test_photos_of_that_class_alone(pool: PhotoPool) -> None:
    held = everyone(partition(PartitionName.CLASSES, clients=3, classes_per_client=1), pool)

    # Client i has all 40 of class i and so all 8 test photos of it.
    assert [labels_of(side(photos, is_test=False)) for photos in held] == [{name: 40} for name in CLASSES]
    assert [labels_of(side(photos, is_test=True)) for photos in held] == [{name: 8} for name in CLASSES]


@pytest.mark.parametrize("name", WITH_TEST_SIDE)
def test_test_photos_are_divided_in_proportion_to_train_photos(pool: PhotoPool, name: PartitionName) -> None:
    held = everyone(partition(name), pool)

    trained, tested = ([labels_of(side(photos, is_test=t)) for photos in held] for t in (False, True))
    for label in CLASSES:
        total = sum(counts[label] for counts in trained)
        # A part is the difference of two cuts, each rounded down by less than 1.
        assert all(abs(test[label] - 8 * train[label] / total) < 1 for train, test in zip(trained, tested, strict=True))


@pytest.mark.parametrize("name", WITH_TEST_SIDE)
def test_a_number_of_test_photos_has_the_class_mix_of_the_train_photos(pool: PhotoPool, name: PartitionName) -> None:
    for photos in everyone(partition(name, test_photos=7), pool):
        train, test = labels_of(side(photos, is_test=False)), labels_of(side(photos, is_test=True))
        assert test.total() == 7
        # Largest remainders: within 1 of the exact part.
        assert all(abs(test[label] - 7 * train[label] / train.total()) < 1 for label in CLASSES)


def test_no_test_photos_may_be_asked_for(pool: PhotoPool) -> None:
    held = everyone(partition(PartitionName.DIRICHLET, test_photos=0), pool)

    assert not any(side(photos, is_test=True) for photos in held)


def test_too_many_test_photos_name_class_and_client(pool: PhotoPool) -> None:
    chosen = partition(PartitionName.CLASSES, clients=3, classes_per_client=1, test_photos=9)

    with pytest.raises(
        Unservable, match=r"class 'cat' has 8 test photos in .*, but client 0 needs 9 among its 9, .*: lower"
    ):
        chosen.album(pool, 0)


def test_photos_drawn_twice_are_two_entries(pool: PhotoPool) -> None:
    # floor(120 / 2) = 60 draws out of the 40 photos of a class.
    photos = side(photos_of(partition(PartitionName.TWO_CLASSES, clients=1), pool, 0), is_test=False)

    assert sorted(labels_of(photos).values()) == [60, 60]
    times = Counter(photo.digest for photo in photos)
    assert all(
        sorted(photo.copy for photo in photos if photo.digest == digest) == list(range(count))
        for digest, count in times.items()
    )


def test_pooled_halves_divide_train_and_test_photos_together(pool: PhotoPool) -> None:
    held = everyone(partition(PartitionName.POOLED_HALVES, min_photos=20), pool)

    assert len({photo.path for photos in held for photo in photos}) == 144
    assert min(map(len, held)) >= 20
    for photos in held:
        train, test = side(photos, is_test=False), side(photos, is_test=True)
        assert 0 <= len(test) - len(train) <= 1
        assert {photo.path.parts[-3] for photo in train} == {"train", "test"}


def test_equal_files_do_not_come_into_both_halves_of_a_client(tmp_path: Path) -> None:
    for label in CLASSES:
        for number, part in enumerate(("train", "test")):
            (tmp_path / part / label).mkdir(parents=True)
            for index in range(30):
                (tmp_path / part / label / f"{index}.png").write_bytes(f"{label} {index // (2 - number)}".encode())

    for photos in everyone(partition(PartitionName.POOLED_HALVES), PhotoPool.open(tmp_path)):
        trained, tested = ({p.digest for p in side(photos, is_test=is_test)} for is_test in (False, True))
        assert trained
        assert tested
        assert not trained & tested


def test_the_evaluator_of_pooled_halves_holds_what_the_clients_test_with(pool: PhotoPool) -> None:
    chosen = partition(PartitionName.POOLED_HALVES)

    photos = chosen.evaluator_album(pool).photos(1).photos

    tested = {photo.path for held in everyone(chosen, pool) for photo in side(held, is_test=True)}
    assert all(photo.is_test for photo in photos)
    assert {photo.path for photo in photos} == tested


def test_the_evaluator_of_other_partitions_holds_the_folders_test_photos(pool: PhotoPool) -> None:
    photos = partition(PartitionName.DIRICHLET).evaluator_album(pool).photos(1).photos

    assert {photo.path.parts[-3] for photo in photos} == {"test"}
    assert len(photos) == 24


def test_a_pool_that_leaves_a_client_without_photos_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path / "train", {"cat": 2, "dog": 40})
    write_files(tmp_path / "test", {"cat": 2, "dog": 2})
    chosen = partition(PartitionName.CLASSES, clients=7, classes_per_client=1)

    # Clients 0, 2, 4, 6 hold the two cats.
    with pytest.raises(Unservable, match="leave client 4 without any: add photos or take fewer than 7 clients"):
        chosen.album(PhotoPool.open(tmp_path), 0)
