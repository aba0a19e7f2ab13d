import os
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from fedlens_edge_client.errors import AlbumError
from fedlens_edge_client.storage.album import AlbumSnapshot
from fedlens_edge_client.storage.folder_album import OUTSIDE, UNREADABLE, FolderAlbum
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_proto.keyed_hash import is_test_photo
from tests.edge_client.photo_folders import add_photos, make_album


def names(snapshot: AlbumSnapshot, label: str) -> set[str]:
    return {photo.path.name for photo in snapshot.photos if photo.label == label}


def test_each_sub_folder_is_a_class_and_each_photo_known_by_its_content(photos: Path) -> None:
    snapshot = FolderAlbum(photos).photos(1)

    assert len(snapshot.photos) == 20
    for photo in snapshot.photos:
        assert photo.label == photo.path.parent.name
        assert photo.digest == sha256(photo.path.read_bytes()).digest()
        assert photo.is_test == is_test_photo(photo.digest)
    assert snapshot.skipped == {}


def test_photos_that_arrive_go_or_are_moved_show_at_the_next_look(photos: Path) -> None:
    album = FolderAlbum(photos)
    album.photos(1)
    add_photos(photos, "cat", 1, seed=5)
    (photos / "cat" / "0-000.png").unlink()
    (photos / "cat" / "0-001.png").rename(photos / "dog" / "moved.png")
    snapshot = album.photos(2)

    assert "5-000.png" in names(snapshot, "cat")
    assert not {"0-000.png", "0-001.png"} & names(snapshot, "cat")
    assert "moved.png" in names(snapshot, "dog")


def test_a_photo_replaced_under_its_name_has_a_new_digest(photos: Path) -> None:
    path = photos / "cat" / "0-000.png"
    before = path.read_bytes()
    album = FolderAlbum(photos)
    old = {photo.digest for photo in album.photos(1).photos}
    path.write_bytes(before[:-1] + b"?")
    new = {photo.digest for photo in album.photos(2).photos}

    assert old - new == {sha256(before).digest()}


def test_equal_photos_are_told_apart_by_their_copy(tmp_path: Path) -> None:
    (first,) = add_photos(tmp_path, "cat", 1)
    (first.parent / "again.png").write_bytes(first.read_bytes())
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "same.png").write_bytes(first.read_bytes())
    snapshot = FolderAlbum(tmp_path).photos(1)

    assert [(photo.copy, photo.path.name) for photo in snapshot.photos] == [
        (0, "0-000.png"),
        (1, "again.png"),
        (2, "same.png"),
    ]


def test_what_is_no_usable_photo_is_named_with_the_reason(photos: Path) -> None:
    (photos / "stray.png").write_bytes(b"")
    (photos / "cat" / "phone.HEIC").write_bytes(b"")
    (photos / "cat" / "notes.txt").write_bytes(b"")
    (photos / "cat" / "dangling.png").symlink_to(photos / "nowhere")
    (photos / "cat" / ".hidden.png").write_bytes(b"")
    snapshot = FolderAlbum(photos).photos(1)

    assert snapshot.skipped[OUTSIDE] == ("stray.png",)
    assert snapshot.skipped[UNREADABLE] == ("cat/dangling.png",)
    told = {name for names in snapshot.skipped.values() for name in names}
    assert told == {"stray.png", "cat/dangling.png", "cat/phone.HEIC", "cat/notes.txt"}


def test_a_name_that_is_no_text_can_still_be_told(photos: Path) -> None:
    odd = os.fsdecode(os.fsencode(photos / "cat") + b"/\xff.heic")
    Path(odd).write_bytes(b"")
    snapshot = FolderAlbum(photos).photos(1)

    (told,) = (name for names in snapshot.skipped.values() for name in names)
    assert told.encode().decode() == told


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AlbumError, match="is no folder"):
        FolderAlbum(tmp_path / "nowhere")


def test_unchanged_photos_are_read_once_in_the_life_of_the_state_folder(tmp_path: Path) -> None:
    root = make_album(tmp_path / "photos", 2)
    files = sorted(root.glob("*/*.png"))
    for path in files:
        os.utime(path, (1_000_000, 1_000_000))
    with closing(StateFolder.open(tmp_path / "state", "https://s")) as state:
        album = FolderAlbum(root)
        album.remember_in(state)
        before = album.photos(1)
    # Same size and time but other bytes: who does not read again cannot see it.
    files[0].write_bytes(files[0].read_bytes()[:-1] + b"?")
    os.utime(files[0], (1_000_000, 1_000_000))
    with closing(StateFolder.open(tmp_path / "state", "https://s")) as state:
        album = FolderAlbum(root)
        album.remember_in(state)
        after = album.photos(1)

    assert before == after
