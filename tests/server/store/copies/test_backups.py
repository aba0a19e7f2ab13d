import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from fedlens_server.errors import StorageFull, StoreUnusable, Unavailable
from fedlens_server.store import StateAddress, Store
from fedlens_server.store.copies import backups
from fedlens_server.store.copies.folders import Folder
from fedlens_server.store.dialects import Sqlite
from fedlens_server.store.objects import ObjectStore
from tests.server.elsewhere import Cluster, Gateway, elsewhere

# A blob of 256 KiB, which is a file.
LARGE = bytes(range(256)) * 1024
# Ends itself as `kill -9` would, when the first blob is on its way.
KILLED = """
import os, signal, sys
from pathlib import Path
from fedlens_server.store import StateAddress
from fedlens_server.store.copies import backups, folders
folders.sync = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
backups.make(StateAddress(folder=Path(sys.argv[1])), Path(sys.argv[2]), 0.0)
"""


def put(store: Store, raw: bytes) -> bytes:
    with store.incoming() as incoming:
        incoming.write(raw[:1])
        incoming.write(raw[1:])
        stored = incoming.finish()
        store.submit(lambda transaction: transaction.place(stored)).result()
    return stored.digest


def delete(store: Store, digest: bytes) -> None:
    store.submit(lambda transaction: store.delete_blobs(transaction, [digest])).result()


def days_ago(*paths: Path) -> None:
    """Have files be written some days ago."""
    for path in paths:
        at = time.time() - 2 * backups.GRACE_S
        os.utime(path, (at, at))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data")
    yield opened
    opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def test_a_blob_that_is_deleted_after_the_snapshot_is_in_the_backup_and_then_leaves_the_state(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = put(store, LARGE)
    snapshot = backups._snapshot

    def then_deleted(source: StateAddress, target: Path) -> tuple[str, dict[str, backups.Named]]:
        taken = snapshot(source, target)
        delete(store, digest)
        return taken

    monkeypatch.setattr(backups, "_snapshot", then_deleted)
    store.blobs.keep_files()
    made = backups.make(store.address, folder, 0.0)
    store.blobs.end_keeping_files()

    backups.check(folder / made.name)
    assert (folder / "blobs" / digest.hex()).read_bytes() == LARGE
    assert not store.blobs.files.path(digest).exists()


def test_a_blob_that_is_stored_again_while_a_backup_is_made_stays(store: Store) -> None:
    digest = put(store, LARGE)

    store.blobs.keep_files()
    delete(store, digest)
    put(store, LARGE)
    store.blobs.end_keeping_files()

    assert store.blobs.files.path(digest).read_bytes() == LARGE


def test_a_backup_that_is_killed_does_not_look_whole_and_the_next_one_clears_it_away(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    digest = put(store, LARGE)
    command = [sys.executable, "-c", KILLED, str(store.folder), str(folder)]

    killed = subprocess.run(command, check=False).returncode
    for left in folder.iterdir():
        with pytest.raises(StoreUnusable, match=f"there is no whole backup at {left}; name one that"):
            backups.check(left)
    (folder / "1970-01-01T00-00-00.500000Z").mkdir()
    (folder / "1970-01-01T00-00-00.500000Z" / ".blobs.txt").write_bytes(b"half of a list")
    days_ago(folder / "1970-01-01T00-00-00.500000Z" / ".blobs.txt")
    made = backups.make(store.address, folder, 1.0)

    assert killed == -signal.SIGKILL
    assert sorted(path.name for path in folder.iterdir()) == [made.name, "blobs"]
    assert [path.name for path in (folder / "blobs").iterdir()] == [digest.hex()]


def test_a_backup_leaves_what_another_server_may_be_about_to_complete(store: Store, folder: Path) -> None:
    (stopped := folder / "1970-01-01T00-00-00.500000Z").mkdir(parents=True)
    (begun := folder / "1970-01-01T00-00-00.600000Z").mkdir()
    (folder / "blobs").mkdir()
    old = [stopped / "blobs.txt", folder / "blobs" / ("01" * 32)]
    young = [begun / "blobs.txt", folder / "blobs" / ("02" * 32)]
    for path in (*old, *young):
        path.write_bytes(b"of a backup")
    days_ago(*old)

    made = backups.make(store.address, folder, 1.0)

    assert sorted(path.name for path in folder.iterdir()) == [begun.name, made.name, "blobs"]
    assert all(path.exists() for path in young)
    assert not any(path.exists() for path in old)


def test_two_servers_that_back_up_into_one_bucket_make_whole_backups(
    store: Store, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for raw in (LARGE, LARGE[::-1]):
        put(store, raw)
    place, writing, made = gateway.bucket(), ObjectStore.put, list[backups.Copied]()

    def meanwhile(self: ObjectStore, key: str, source: Path | bytes) -> None:
        writing(self, key, source)
        monkeypatch.setattr(ObjectStore, "put", writing)
        made.append(backups.make(other.address, place, 1.0, keep=1))

    with closing(Store.open(tmp_path / "other")) as other:
        monkeypatch.setattr(ObjectStore, "put", meanwhile)
        made.append(backups.make(store.address, place, 0.0))

    for each in made:
        backups.check(place / each.name)
    assert [each.copied for each in made] == [0, 2]


def test_a_backup_of_which_a_blob_is_deleted_before_it_is_whole_is_not_made(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, writing = put(store, LARGE).hex(), Folder.put

    def then_deleted(self: Folder, key: str, source: Path | bytes) -> None:
        writing(self, key, source)
        (folder / "blobs" / digest).unlink(missing_ok=True)

    monkeypatch.setattr(Folder, "put", then_deleted)

    with pytest.raises(Unavailable, match=f"no backup was made: blob {digest} has gone from {folder}; no server"):
        backups.make(store.address, folder, 0.0)
    assert list(folder.glob("*/backup.json")) == []


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_blob_that_was_cut_short_in_the_place_of_backups_is_copied_again(
    where: str, store: Store, folder: Path, request: pytest.FixtureRequest
) -> None:
    key = f"blobs/{put(store, LARGE).hex()}"
    place = folder if where == "folder" else request.getfixturevalue("gateway").bucket()
    first = backups.make(store.address, place, 0.0)
    backups._files(place).put(key, LARGE[:1000])
    with pytest.raises(StoreUnusable, match=r"is damaged; no backup that names this blob can be restored\. If its"):
        backups.check(place / first.name)

    second = backups.make(store.address, place, 1.0)

    assert second.copied == 1
    for made in (first, second):
        backups.check(place / made.name)


@pytest.mark.parametrize("damaged", ["blob", "database"])
def test_damage_is_found_and_nothing_that_a_server_would_take_up_is_written(
    store: Store, folder: Path, tmp_path: Path, damaged: str
) -> None:
    digest = put(store, LARGE)
    saved = folder / backups.make(store.address, folder, 0.0).name
    path = folder / "blobs" / digest.hex() if damaged == "blob" else saved / "server.sqlite3"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)

    with pytest.raises(StoreUnusable, match=f"{path} is damaged"):
        backups.check(saved)
    with pytest.raises(StoreUnusable, match=f"{path} is damaged"):
        backups.restore(saved, tmp_path / "new")

    assert list((tmp_path / "new").iterdir()) == []


def test_a_place_of_backups_is_told_apart_from_a_backup_and_from_nothing(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    first, last = (backups.make(store.address, folder, taken_at).name for taken_at in (0.0, 1.0))

    with pytest.raises(StoreUnusable) as of_all:
        backups.check(folder)
    with pytest.raises(StoreUnusable) as of_none:
        backups.restore(tmp_path / "mistyped" / first, tmp_path / "new")
    with pytest.raises(StoreUnusable) as of_another:
        backups.check(folder / "2026-01-31T04-00-00.000000Z")

    assert str(of_all.value) == f"there is no whole backup at {folder}; name one of the 2 in it: {first}, {last}"
    assert str(of_none.value).startswith(f"there is no whole backup at {tmp_path}/mistyped/{first}; name one that ")
    assert str(of_another.value).endswith(f"00.000000Z; name one of the 2 beside it: {first}, {last}")


def test_a_missing_blob_is_named(store: Store, folder: Path, tmp_path: Path) -> None:
    digest = put(store, LARGE)
    saved = folder / backups.make(store.address, folder, 0.0).name
    (folder / "blobs" / digest.hex()).unlink()

    with pytest.raises(StoreUnusable, match=f"{digest.hex()} cannot be read"):
        backups.check(saved)
    with pytest.raises(StoreUnusable, match=f"{digest.hex()} cannot be read"):
        backups.restore(saved, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_restore_that_fails_at_its_very_end_leaves_nothing(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, LARGE)
    saved = folder / backups.make(store.address, folder, 0.0).name
    sync = backups.sync

    def full(path: Path) -> None:
        if path == tmp_path / "new":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        sync(path)

    monkeypatch.setattr(backups, "sync", full)

    with pytest.raises(StoreUnusable, match="new: Input/output error"):
        backups.restore(saved, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_nothing_is_restored_over_what_is_there(store: Store, folder: Path) -> None:
    saved = folder / backups.make(store.address, folder, 0.0).name

    with pytest.raises(StoreUnusable, match="is not empty"):
        backups.restore(saved, store.folder)


def test_a_restored_state_opens_with_its_blobs(store: Store, folder: Path, tmp_path: Path) -> None:
    large, small = put(store, LARGE), put(store, b"small")
    saved = folder / backups.make(store.address, folder, 0.0).name

    backups.restore(saved, tmp_path / "new")

    restored = Store.open(tmp_path / "new")
    try:
        assert restored.blobs.files.path(large).read_bytes() == LARGE
        assert restored.blobs.locate(small).raw == b"small"
    finally:
        restored.close()


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_state_elsewhere_is_backed_up_into_a_folder_or_a_bucket_and_restored(
    where: str, cluster: Cluster, gateway: Gateway, folder: Path, tmp_path: Path
) -> None:
    place = folder if where == "folder" else gateway.bucket()
    with closing(Store.open(elsewhere(tmp_path / "data", cluster, gateway))) as store:
        large, small = put(store, LARGE), put(store, b"small")
        first = backups.make(store.address, place, 0.0)
        store.blobs.files.path(large).unlink()
        gone = put(store, LARGE[::-1])
        second = backups.make(store.address, place, 1.0)
        delete(store, gone)
        third = backups.make(store.address, place, 2.0, keep=2)
        last = backups.make(store.address, place, 3.0, keep=1)

    assert [each.copied for each in (first, second, third, last)] == [1, 1, 0, 0]
    assert [each.removed for each in (third, last)] == [1, 2]
    backups.check(place / last.name)
    with pytest.raises(StoreUnusable, match=f"{second.name}; name one of the 1 beside it: {last.name}"):
        backups.check(place / second.name)
    with pytest.raises(StoreUnusable, match=f"no whole backup at {place}; name one of the 1 in it: {last.name}"):
        backups.check(place)
    backups.restore(place / last.name, tmp_path / "new")
    with closing(Store.open(tmp_path / "new")) as restored:
        assert restored.blobs.files.path(large).read_bytes() == LARGE
        assert restored.blobs.locate(small).raw == b"small"
        assert gone not in restored.blobs.sizes


@pytest.mark.parametrize("pages", [1, 100])  # less than the empty tables take, less than the rows do
def test_no_room_for_the_snapshot_of_a_state_elsewhere_is_told(
    cluster: Cluster, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    engine = Sqlite.engine

    def small(file: Sqlite, *, writes: bool = False, durable: bool = True) -> Engine:
        made = engine(file, writes=writes, durable=durable)
        event.listen(made, "connect", lambda connection, _: connection.execute(f"PRAGMA max_page_count = {pages}"))
        return made

    monkeypatch.setattr(Sqlite, "engine", small)
    with closing(Store.open(elsewhere(tmp_path / "data", cluster, None))) as store:
        for number in range(10):
            put(store, bytes([number]) * 60_000)

        with pytest.raises(StorageFull):
            backups.make(store.address, folder, 0.0)

    assert list(folder.iterdir()) == []


def test_a_new_backup_stays_although_a_clock_that_was_ahead_has_named_others_for_later_times(
    store: Store, folder: Path
) -> None:
    _, ahead = [backups.make(store.address, folder, taken_at).name for taken_at in (1e9, 2e9)]

    second = backups.make(store.address, folder, 0.0, keep=2)
    of_two = sorted(path.name for path in folder.iterdir())
    last = backups.make(store.address, folder, 1.0, keep=1)

    assert (of_two, second.removed) == ([second.name, ahead], 1)
    assert ([path.name for path in folder.iterdir()], last.removed) == ([last.name], 2)


def test_what_is_not_of_a_backup_stays(store: Store, folder: Path) -> None:
    (folder / "photos").mkdir(parents=True)
    others = [folder / "README", folder / "photos" / "one.jpg", folder / ".hidden"]
    for path in others:
        path.write_bytes(b"of somebody else")

    backups.make(store.address, folder, 0.0, keep=1)
    backups.make(store.address, folder, 1.0, keep=1)

    assert all(path.exists() for path in others)


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_damaged_blob_of_the_state_is_not_backed_up(
    where: str, store: Store, folder: Path, request: pytest.FixtureRequest
) -> None:
    digest = put(store, LARGE)
    place = folder if where == "folder" else request.getfixturevalue("gateway").bucket()
    store.blobs.files.path(digest).write_bytes(LARGE[::-1])

    with pytest.raises(Unavailable, match=f"blob {digest.hex()}, as it is stored, is damaged"):
        backups.make(store.address, place, 0.0)

    files = backups._files(place)
    assert list(files.list()) == []


def test_what_a_killed_backup_into_a_bucket_left_goes_with_the_next(store: Store, gateway: Gateway) -> None:
    left = store.folder / ".backup-killed"
    left.mkdir()
    (left / "server.sqlite3").write_bytes(b"half of it")

    backups.make(store.address, gateway.bucket(), 0.0)

    assert list(store.folder.glob(".backup-*")) == []


def test_damage_in_a_bucket_is_found(store: Store, gateway: Gateway, tmp_path: Path) -> None:
    digest, place = put(store, LARGE), gateway.bucket()
    saved = place / backups.make(store.address, place, 0.0).name
    ObjectStore(place).put(f"blobs/{digest.hex()}", LARGE[::-1])

    with pytest.raises(StoreUnusable, match=f"{place}/blobs/{digest.hex()} is damaged"):
        backups.restore(saved, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
