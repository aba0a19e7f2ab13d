import csv
import tarfile
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens_edge_client.emulation.partitions import (
    Partition,
    PartitionName,
    PhotoPool,
    PoolPhoto,
    PoolUnusable,
    Unservable,
)
from fedlens_edge_client.storage.album import Photo
from tests.edge_client.photo_folders import write_clients, write_files

HAND_SIGNS = Path(__file__).parents[5] / "shared" / "data" / "hand-signs.tar.xz"
CLASSES = ("cat", "dog")


def pool_of(owners: list[str]) -> PhotoPool:
    """Of each owner three train photos and one test photo, as files OWNER/N."""

    def side(label: int, numbers: range) -> tuple[PoolPhoto, ...]:
        paths = [Path(owner, str(number)) for owner in owners for number in numbers if number % 2 == label]
        return tuple(PoolPhoto(path, sha256(str(path).encode()).digest(), 0, path.parts[0]) for path in paths)

    train, test = (tuple(side(label, numbers) for label in (0, 1)) for numbers in (range(3), range(3, 4)))
    return PhotoPool(root=Path("photos"), class_names=CLASSES, train=train, test=test, skipped={})


def partition(seed: int, clients: int | None, unseen: float = 0.0) -> Partition:
    return Partition.of(PartitionName.CLIENTS, {"unseen": unseen}, seed=seed, clients=clients)


def held(chosen: Partition, pool: PhotoPool, index: int) -> tuple[Photo, ...]:
    return chosen.album(pool, index).photos(1).photos


def owners_in(photos: tuple[Photo, ...]) -> Counter[str]:
    return Counter(photo.path.parts[0] for photo in photos)


names = st.lists(st.text("abcdefgh", min_size=1), min_size=2, max_size=30, unique=True)
seeds = st.integers(0, 2**32)


@given(names, seeds, st.data())
def test_every_seen_owners_photos_are_at_one_client_and_unseen_ones_at_the_evaluator_alone(
    owners: list[str], seed: int, data: st.DataObject
) -> None:
    pool = pool_of(owners)
    count = data.draw(st.integers(1, len(owners) - 1))
    clients = data.draw(st.integers(1, len(owners) - count))
    chosen = partition(seed, clients, count / len(owners))

    unseen = chosen.unseen_owners(pool)
    shares = [held(chosen, pool, index) for index in range(clients)]
    evaluated = chosen.evaluator_album(pool).photos(1).photos

    assert len(unseen) == count
    assert sum(map(owners_in, shares), Counter()) == dict.fromkeys(set(owners) - set(unseen), 4)
    counts = [len(owners_in(share)) for share in shares]
    assert max(counts) - min(counts) <= 1
    for index, share in enumerate(shares):
        assert tuple(sorted(owners_in(share))) == chosen.owners_of(pool, index)
        assert sum(photo.is_test for photo in share) == counts[index]
    assert owners_in(evaluated) == dict.fromkeys(unseen, 4)
    assert all(photo.is_test for photo in evaluated)


def test_without_unseen_owners_the_evaluator_has_everyones_test_photos() -> None:
    pool = pool_of(["anna", "ben", "carl"])

    evaluated = partition(1, 2).evaluator_album(pool).photos(1).photos

    assert owners_in(evaluated) == {"anna": 1, "ben": 1, "carl": 1}
    assert all(photo.is_test for photo in evaluated)


@given(names, seeds, st.floats(0.01, 0.5))
def test_unseen_owners_are_the_same_ones_for_any_number_of_clients(owners: list[str], seed: int, share: float) -> None:
    pool = pool_of(owners)
    expected = partition(seed, None, share).unseen_owners(pool)

    seen = len(owners) - len(expected)

    assert all(partition(seed, clients, share).unseen_owners(pool) == expected for clients in range(1, seen + 1))
    # Half of an odd number, rounded, leaves somebody; a share that is not 0 takes somebody.
    assert 1 <= len(expected) < len(owners)


def test_unseen_owners_are_others_for_other_seeds() -> None:
    pool = pool_of([f"{number:02}" for number in range(30)])

    # Six of 30 in 593,775 ways: hardly any two of ten seeds agree.
    assert len({partition(seed, 1, 0.2).unseen_owners(pool) for seed in range(10)}) == 10


def test_with_as_many_clients_as_owners_each_is_one_in_the_order_of_names() -> None:
    pool = pool_of(["carl", "anna", "ben"])

    assert [partition(1, 3).owners_of(pool, index) for index in range(3)] == [("anna",), ("ben",), ("carl",)]
    assert [partition(1, None).owners_of(pool, index) for index in range(3)] == [("anna",), ("ben",), ("carl",)]


def test_by_default_there_is_a_client_for_each_seen_owner() -> None:
    pool = pool_of([f"{number:02}" for number in range(11)])

    # A fifth of 11 is 2.2: two are unseen.
    assert partition(1, None, 0.2).clients_of(pool) == 9
    assert partition(1, 4, 0.2).clients_of(pool) == 4


def test_more_clients_than_owners_are_refused_with_both_numbers() -> None:
    with pytest.raises(Unservable, match=r"5 clients are too many for 2 people or devices .*: take at most 2 clients"):
        partition(1, 5, 0.3).album(pool_of(["anna", "ben", "carl"]), 0)


def test_a_share_of_unseen_that_leaves_nobody_is_refused() -> None:
    with pytest.raises(Unservable, match=r"unseen 0\.9, 3 of 3 people or devices are kept from training.*: lower it"):
        partition(1, 1, 0.9).album(pool_of(["anna", "ben", "carl"]), 0)


def test_photos_without_owners_are_refused_with_the_layouts_that_would_do(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_files(tmp_path, {"cat": 5, "dog": 5}))

    with pytest.raises(PoolUnusable, match=r"does not say whose photos .* CLIENT/CLASS, or write a table clients\.csv"):
        partition(1, 2).album(pool, 0)


def test_a_client_of_one_photo_is_refused_by_name_and_may_share_a_client(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_clients(tmp_path, {"anna": {"cat": 4, "dog": 4}, "ben": {"cat": 1}}))

    with pytest.raises(
        PoolUnusable, match=r"client 'ben' has 1 photo in .*, 0 to train on and 1 to test with; .*: add photos, leave"
    ):
        partition(1, 2).album(pool, 0)
    assert len(held(partition(1, 1), pool, 0)) == 9


def test_a_client_whose_photos_are_all_copies_of_others_test_photos_is_refused_by_name(tmp_path: Path) -> None:
    write_clients(tmp_path, {"anna": {"cat": 10, "dog": 10}})
    test = [photo for members in PhotoPool.open(tmp_path).test for photo in members]
    (tmp_path / "ben" / "cat").mkdir(parents=True)
    for photo in test:
        (tmp_path / "ben" / "cat" / photo.path.name).write_bytes(photo.path.read_bytes())

    # Of 20 photos four are for tests.
    with pytest.raises(PoolUnusable, match=r"client 'ben' has 4 photos in .*, 0 to train on and 4 to test with"):
        partition(1, 2).album(PhotoPool.open(tmp_path), 0)


def test_the_evaluator_has_no_copy_of_what_a_client_trains_on(tmp_path: Path) -> None:
    write_clients(tmp_path, {"anna": {"cat": 8, "dog": 8}, "ben": {"cat": 8, "dog": 8}})
    for photo in (tmp_path / "anna" / "cat").iterdir():
        (tmp_path / "ben" / "cat" / f"copy-{photo.name}").write_bytes(photo.read_bytes())
    pool = PhotoPool.open(tmp_path)
    chosen = partition(1, 1, 0.5)

    evaluated = {photo.digest for photo in chosen.evaluator_album(pool).photos(1).photos}

    assert evaluated
    assert not evaluated & {photo.digest for photo in held(chosen, pool, 0) if not photo.is_test}


def test_other_partitions_take_photos_of_owners_as_any(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_clients(tmp_path, {name: {"cat": 9, "dog": 9} for name in ("anna", "ben")}))
    chosen = Partition.of(PartitionName.DIRICHLET, {"min_photos": 1}, seed=1, clients=3)

    assert sum(len(held(chosen, pool, index)) for index in range(3)) == 36
    assert chosen.owners_of(pool, 0) == chosen.unseen_owners(pool) == ()


@pytest.fixture(scope="module")
def hand_signs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not HAND_SIGNS.exists():
        pytest.skip("the photos of hand signs are not beside the repository (../shared/data/hand-signs.tar.xz)")
    root = tmp_path_factory.mktemp("people")
    with tarfile.open(HAND_SIGNS) as archive:
        archive.extractall(root, filter="data")
    return root / "hand-signs"


def test_hand_signs_of_222_people_are_dealt_to_twenty_clients(hand_signs: Path) -> None:
    with (hand_signs / "people.csv").open(newline="") as file:
        photos = Counter(row["person"] for row in csv.DictReader(file))
    pool = PhotoPool.open(hand_signs)
    chosen = partition(1, 20, 0.2)
    unseen = chosen.unseen_owners(pool)

    clients = [held(chosen, pool, index) for index in range(20)]

    assert pool.owners == tuple(sorted(photos))
    assert pool.class_names == tuple("0123456789")
    assert pool.skipped == {}
    # A fifth of 222 people is 44.4; the 178 others are dealt to 20 clients, 9 to 18 of them and 8 to two.
    assert len(unseen) == 44
    assert Counter(len(chosen.owners_of(pool, index)) for index in range(20)) == {9: 18, 8: 2}
    assert sum(map(len, clients)) == sum(photos[owner] for owner in photos.keys() - set(unseen))
    assert len(chosen.evaluator_album(pool).photos(1).photos) == sum(photos[owner] for owner in unseen)
    # One photo in five of most, who have ten; each of the ten signs is tested.
    assert sum(map(len, pool.test)) == pytest.approx(2062 / 5, abs=20)
    assert min(map(len, pool.test)) >= 20
