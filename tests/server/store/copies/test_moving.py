"""A state that moves between a folder and elsewhere, there and back."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from fedlens_server.errors import StoreUnusable, Unavailable
from fedlens_server.store import StateAddress, Store, schema
from fedlens_server.store.copies.moving import move
from fedlens_server.store.database import holds_state
from fedlens_server.store.dialects import DATABASE_FILE
from fedlens_server.store.objects import ObjectStore
from tests.server.elsewhere import Cluster, Gateway, elsewhere
from tests.server.store.test_objects import put

LARGE = [bytes([i]) * 70_000 for i in range(4)]
TABLES = [table for table in schema.metadata.sorted_tables if table is not schema.lead]


@pytest.fixture
def here(folder: Path) -> StateAddress:
    """A state in a folder, with 4 large blobs, and the second of 2 tasks, for the first was deleted."""
    address = StateAddress(folder=folder)
    with closing(Store.open(address)) as store:
        for raw in (*LARGE, b"small\0"):
            put(store, raw)
        for name in ("first", "second"):
            store.submit(lambda transaction, name=name: transaction.execute(_TASK, _task(name)).close()).result()
        store.submit(lambda transaction: transaction.execute(schema.tasks.delete()).close()).result()
        for i in range(600):
            row = {"id": os.urandom(32), "role": 1, "token": f"t{i}", "capabilities": b"\0", "enrolled_at": i / 3}
            store.submit(lambda transaction, row=row: transaction.later(_CLIENT, row))
        store.submit(lambda transaction: None).result()
    return address


_TASK, _CLIENT = insert(schema.tasks), insert(schema.clients)


def _task(name: str) -> dict[str, object]:
    standing = {"state": 1, "reason": "", "committed": 0, "abandoned": 0}
    return {"name": name, "content": b"", "settings": "{}", "seed": b"", **standing}


@pytest.fixture
def there(tmp_path: Path, cluster: Cluster, gateway: Gateway) -> Iterator[StateAddress]:
    return elsewhere(tmp_path / "there", cluster, gateway)


def everything(address: StateAddress) -> dict[str, list[tuple[object, ...]]]:
    """All rows but keys of objects, and the bytes of all large blobs."""
    with closing(Store.open(address)) as store:
        found = {table.name: sorted(map(_without_key, store.read(select(table)))) for table in TABLES}
        for raw in LARGE:
            path = store.blobs.locate(sha256(raw).digest()).path
            assert path is not None
            assert path.read_bytes() == raw
    return found


def _without_key(row: object) -> tuple[object, ...]:
    return tuple(repr(value) for name, value in row._mapping.items() if name != "object")  # type: ignore[attr-defined]


def test_a_state_goes_elsewhere_and_back(here: StateAddress, there: StateAddress, tmp_path: Path) -> None:
    before = everything(here)

    moved = move(here, there)
    assert (moved.blobs, moved.copied) == (4, 4)
    assert everything(there) == before
    back = StateAddress(folder=tmp_path / "back")
    move(there, back)

    assert everything(back) == before
    for address in (there, back):
        with closing(Store.open(address)) as store:
            made = store.submit(lambda t: t.execute(_TASK.returning(schema.tasks.c.id), _task("third")).scalar())
            assert made.result() == 3  # a task's id is given once, also if the task was deleted


@pytest.mark.slow
def test_a_move_that_was_stopped_is_begun_again_and_copies_the_rest(
    here: StateAddress, there: StateAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, puts = ObjectStore.put, list[str]()

    def stopping(self: ObjectStore, key: str, source: Path | bytes) -> None:
        puts.append(key)
        if len(puts) == 4:  # the probe, and two of the blobs, have come there
            raise Unavailable("the network is gone")
        writing(self, key, source)

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStore, "put", stopping)
        with pytest.raises(StoreUnusable, match="the network is gone"):
            move(here, there)
    moved = move(here, there)

    assert (moved.blobs, moved.copied) == (4, 2)
    assert everything(there) == everything(here)


def test_a_state_is_moved_only_to_where_there_is_none(here: StateAddress, there: StateAddress, tmp_path: Path) -> None:
    move(here, there)

    with pytest.raises(StoreUnusable, match=r"holds another server's state \(\w+\)"):
        move(here, there)
    with pytest.raises(StoreUnusable, match="is the source and the target"):
        move(here, here)
    with pytest.raises(StoreUnusable, match="holds no server's state; nothing was moved"):
        move(StateAddress(folder=tmp_path / "nothing"), here)


def test_a_state_that_a_server_uses_is_not_moved(here: StateAddress, there: StateAddress) -> None:
    with closing(Store.open(here)), pytest.raises(StoreUnusable, match="is in use by another server"):
        move(here, there)


@pytest.mark.parametrize("has_its_folder", [False, True])
def test_a_damaged_blob_is_named_and_no_row_is_moved(
    here: StateAddress, there: StateAddress, has_its_folder: bool
) -> None:
    if has_its_folder:
        there = StateAddress(folder=here.folder, database=there.database)
    blob = here.folder / "blobs" / sha256(LARGE[2]).hexdigest()
    blob.write_bytes(LARGE[1])

    with pytest.raises(StoreUnusable, match=f"blob {blob.name} is damaged; nothing was moved"):
        move(here, there)
    assert blob.read_bytes() == LARGE[1]
    assert not holds_state(there)  # so that no server starts there
    with closing(Store.open(there)) as store:
        assert store.read(select(schema.clients)) == []


def test_a_source_that_cannot_be_read_to_its_end_is_told_apart_from_the_target(
    here: StateAddress, tmp_path: Path
) -> None:
    database = here.folder / DATABASE_FILE
    with closing(sqlite3.connect(database)) as damaging:
        damaging.execute("DROP TABLE tokens")

    with pytest.raises(StoreUnusable) as caught:
        move(here, StateAddress(folder=tmp_path / "new"))

    assert str(caught.value) == f"{database} cannot be used as a database: no such table: tokens"


def test_an_empty_state_elsewhere_leaves_the_blobs_of_the_state_in_its_folder(
    here: StateAddress, cluster: Cluster, gateway: Gateway
) -> None:
    before = everything(here)

    for empty in (elsewhere(here.folder, cluster, None), elsewhere(here.folder, cluster, gateway)):
        Store.open(empty).close()

    assert everything(here) == before
