from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens_edge_client.emulation.partitions import PhotoPool, PoolPhoto, PoolUnusable
from fedlens_edge_client.emulation.partitions.held_out import split
from fedlens_edge_client.emulation.partitions.listing import ByClass
from tests.edge_client.photo_folders import write_clients, write_files

ANNA_AND_BEN = {"anna": {"cat": 4, "dog": 3}, "ben": {"cat": 2, "dog": 6}}


def paths(sides: tuple[tuple[PoolPhoto, ...], ...], root: Path) -> list[str]:
    return [str(photo.path.relative_to(root)) for members in sides for photo in members]


def test_folders_of_clients_are_found_and_a_class_is_the_union_over_them(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_clients(tmp_path, ANNA_AND_BEN))

    assert pool.owners == ("anna", "ben")
    assert pool.class_names == ("cat", "dog")
    assert [len(train) + len(test) for train, test in zip(pool.train, pool.test, strict=True)] == [6, 9]
    assert all(photo.owner == photo.path.parts[-3] for side in (*pool.train, *pool.test) for photo in side)
    assert pool.notes == ()


def test_photos_of_class_folders_have_no_owners(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_files(tmp_path, {"cat": 5, "dog": 5}))

    assert pool.owners == ()
    assert {photo.owner for side in (*pool.train, *pool.test) for photo in side} == {""}


def test_photos_of_a_class_are_in_the_order_of_their_paths(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_clients(tmp_path, ANNA_AND_BEN))

    for members in (*pool.train, *pool.test):
        assert list(members) == sorted(members, key=lambda photo: photo.path)


def test_a_folder_inside_a_class_folder_makes_no_clients(tmp_path: Path) -> None:
    write_files(tmp_path, {"cat": 5, "dog": 5})
    write_files(tmp_path / "cat", {"old": 2})

    pool = PhotoPool.open(tmp_path)

    assert pool.class_names == ("cat", "dog")
    assert list(pool.skipped.values()) == [("cat/old",)]


def test_class_folders_beside_folders_of_clients_are_refused_by_name(tmp_path: Path) -> None:
    write_clients(tmp_path, ANNA_AND_BEN)
    write_files(tmp_path, {"owl": 3})

    with pytest.raises(
        PoolUnusable, match=r"folders of photos \(owl\) beside folders of class folders \(anna, ben\); move photos so"
    ):
        PhotoPool.open(tmp_path)


def test_a_split_with_one_side_is_not_taken_for_a_client(tmp_path: Path) -> None:
    write_clients(tmp_path, {"train": {"cat": 4, "dog": 3}, "val": {"cat": 4, "dog": 3}})

    with pytest.raises(PoolUnusable, match=r"has a folder 'train' and none 'test'; add it, or give .*train alone"):
        PhotoPool.open(tmp_path)


def test_what_is_left_out_of_clients_folders_is_named_from_the_root(tmp_path: Path) -> None:
    write_clients(tmp_path, ANNA_AND_BEN)
    (tmp_path / "anna" / "cat" / "1.HEIC").write_bytes(b"?")
    (tmp_path / "loose.jpg").write_bytes(b"?")

    skipped = PhotoPool.open(tmp_path).skipped

    assert sorted(skipped.values()) == [("anna/cat/1.HEIC",), ("loose.jpg",)]


def test_a_client_without_photos_is_told_and_is_no_owner(tmp_path: Path) -> None:
    write_clients(tmp_path, ANNA_AND_BEN)
    (tmp_path / "carl" / "cat").mkdir(parents=True)

    pool = PhotoPool.open(tmp_path)

    assert pool.owners == ("anna", "ben")
    assert pool.notes == ("folders without a photo that could be read are no clients: carl",)


def test_classes_that_one_client_has_alone_are_told_with_its_name(tmp_path: Path) -> None:
    write_clients(tmp_path, ANNA_AND_BEN | {"carl": {"cat": 5, "emu": 6, "owl": 6}})

    (note,) = PhotoPool.open(tmp_path).notes

    assert note.startswith("only client 'carl' has photos of class 'emu', 'owl': ")
    assert note.endswith("add photos of it to others, or leave it out")


def test_photos_of_one_client_alone_are_told(tmp_path: Path) -> None:
    pool = PhotoPool.open(write_clients(tmp_path, {"anna": {"cat": 5, "dog": 5}}))

    assert pool.notes == ("all photos are of one client (anna): there is no other to learn with",)


# sha256("anna") mod 5 = 0 and sha256("ben") mod 5 = 4: of her five photos the first is held out, of his the last.
@pytest.mark.parametrize(("anna", "held_out"), [({"ant": 1, "bee": 4}, 1), ({"ant": 0, "bee": 5}, 0)])
def test_a_class_that_nobody_can_learn_is_refused_with_what_there_is(
    tmp_path: Path, anna: dict[str, int], held_out: int
) -> None:
    write_clients(tmp_path, {"anna": anna, "ben": {"bee": 5}})

    with pytest.raises(
        PoolUnusable, match=f"class 'ant' has no photo to train on and {held_out} to test with; add photos of it, or"
    ):
        PhotoPool.open(tmp_path)


def test_a_class_that_nobody_is_tested_on_is_told(tmp_path: Path) -> None:
    # Held out are anna's first ant and ben's last cow.
    write_clients(tmp_path, {"anna": {"ant": 3, "bee": 1, "cow": 1}, "ben": {"ant": 1, "bee": 1, "cow": 3}})

    assert PhotoPool.open(tmp_path).notes == ("no test photo of class 'bee': results say nothing of it; add photos",)


owned_photos = st.lists(
    st.tuples(st.sampled_from("abcdefg"), st.sampled_from(("cat", "dog", "owl")), st.integers(0, 30)), max_size=80
)


def by_class(found: list[tuple[str, str, int]], *, shared: bool) -> ByClass:
    """Photos (owner, class, content); unless contents are shared, no two owners have equal files."""
    classes: dict[str, list[PoolPhoto]] = defaultdict(list)
    for number, (owner, name, content) in enumerate(found):
        digest = sha256(repr(content if shared else (owner, content)).encode()).digest()
        classes[name].append(PoolPhoto(Path(owner, name, f"{number}.png"), digest, number, owner))
    return {name: tuple(members) for name, members in classes.items()}


def by_owner(side: ByClass) -> dict[str, set[bytes]]:
    owned: dict[str, set[bytes]] = defaultdict(set)
    for members in side.values():
        for photo in members:
            owned[photo.owner].add(photo.digest)
    return owned


@given(owned_photos)
def test_every_owner_with_two_different_photos_trains_on_some_and_is_tested_with_a_fifth(
    found: list[tuple[str, str, int]],
) -> None:
    train, test = map(by_owner, split(by_class(found, shared=False)))

    for owner in {owner for owner, _, _ in found}:
        held, total = len(test[owner]), len(train[owner]) + len(test[owner])
        # From one of the first five on, each fifth of n: n/5 rounded down or up, and one at least.
        assert max(1, total // 5) <= held <= total // 5 + 1
        assert held < total or total == 1


@given(owned_photos)
def test_equal_files_are_on_one_side_over_all_owners_and_nothing_is_lost(found: list[tuple[str, str, int]]) -> None:
    classes = by_class(found, shared=True)

    train, test = split(classes)

    digests = [{photo.digest for members in side.values() for photo in members} for side in (train, test)]
    assert not digests[0] & digests[1]
    assert all(sorted((*train[name], *test[name]), key=lambda p: p.copy) == list(classes[name]) for name in classes)


@given(owned_photos, st.randoms(use_true_random=False))
def test_sides_follow_from_the_photos_whatever_their_order(found: list[tuple[str, str, int]], random: Random) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)

    assert by_owner(split(by_class(found, shared=True))[1]) == by_owner(split(by_class(shuffled, shared=True))[1])
