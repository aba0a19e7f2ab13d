import errno
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event, insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import PoolProxiedConnection

from fedlens_proto import blob
from fedlens_server.errors import StorageFull, StoreUnusable, Unavailable, Unknown
from fedlens_server.store import MAX_ROW_BYTES, PendingBlob, StateAddress, Store, Transaction, schema

LARGE = bytes(range(256)) * 1024  # 256 KiB, a file
SMALL = b"small"


def put(store: Store, raw: bytes) -> PendingBlob:
    with store.incoming() as incoming:
        for start in range(0, len(raw), 40_000):
            incoming.write(raw[start : start + 40_000])
        stored = incoming.finish()
        store.submit(lambda transaction: transaction.place(stored), [stored.digest]).result()
    return stored


@contextmanager
def written(store: Store, raw: bytes = LARGE) -> Iterator[PendingBlob]:
    """Bytes that wait for their transaction."""
    with store.incoming() as incoming:
        incoming.write(raw)
        yield incoming.finish()


def content(store: Store, digest: bytes) -> bytes:
    location = store.blobs.locate(digest)
    return location.raw if location.path is None else location.path.read_bytes()  # type: ignore[return-value]


def files(store: Store) -> list[str]:
    return [path.name for path in store.blobs.files.folder.iterdir() if path.is_file()]


def placing(stored: PendingBlob, *, fails: bool = False) -> Callable[[Transaction], None]:
    def operation(transaction: Transaction) -> None:
        transaction.place(stored)
        transaction.execute(insert(schema.forgotten), {"id": stored.digest})
        if fails:
            raise Unknown("on purpose")

    return operation


@contextmanager
def held(store: Store) -> Iterator[None]:
    """The writing thread stands still; what is submitted meanwhile waits together."""
    begun, gate = threading.Event(), threading.Event()

    def hold(_: Transaction) -> None:
        begun.set()
        gate.wait()

    holding = store.submit(hold)
    begun.wait()
    try:
        yield
    finally:
        gate.set()
        holding.result()


def disk_full(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def store(address: StateAddress):
    opened = Store.open(address)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_store(folder: Path):
    opened = Store.open(folder)
    yield opened
    opened.close()


@pytest.mark.parametrize("raw", [SMALL, LARGE, b"x" * MAX_ROW_BYTES, b"x" * (MAX_ROW_BYTES + 1)])
def test_what_was_placed_is_there_after_reopening(address: StateAddress, raw: bytes) -> None:
    with closing(Store.open(address)) as store:
        put(store, raw)

    with closing(Store.open(address)) as reopened:
        assert content(reopened, sha256(raw).digest()) == raw


def test_small_blobs_are_rows_and_large_ones_are_files_each_stored_once(store: Store) -> None:
    for raw in (SMALL, LARGE, LARGE):
        put(store, raw)

    assert files(store) == [sha256(LARGE).hexdigest()]
    assert len(store.read(select(schema.blobs.c.digest))) == 2
    assert list(store.blobs.files.incoming.iterdir()) == []


def test_temporary_and_unnamed_files_are_swept_at_start(address: StateAddress) -> None:
    store = Store.open(address)
    put(store, LARGE)
    (store.blobs.files.incoming / "left-over").write_bytes(b"half")
    (store.blobs.files.folder / ("00" * 32)).write_bytes(b"renamed, but its transaction never committed")
    store.close()

    reopened = Store.open(address)
    reopened.close()

    assert files(reopened) == [sha256(LARGE).hexdigest()]
    assert list(reopened.blobs.files.incoming.iterdir()) == []


def test_an_operation_that_fails_leaves_neither_row_nor_file(store: Store) -> None:
    with written(store) as stored, pytest.raises(Unknown):
        store.submit(placing(stored, fails=True)).result()

    assert store.read(select(schema.blobs)) == []
    assert store.read(select(schema.forgotten)) == []
    assert files(store) == []


def test_an_operation_that_fails_takes_no_other_of_its_commit_along(store: Store) -> None:
    with written(store, b"a") as a, written(store, b"b") as b, written(store, b"c") as c, held(store):
        futures = [store.submit(placing(each, fails=each is b), [each.digest]) for each in (a, b, c)]

    assert [type(future.exception()) for future in futures] == [type(None), Unknown, type(None)]
    assert {row.id for row in store.read(select(schema.forgotten))} == {a.digest, c.digest}


def test_operations_with_a_common_key_see_each_others_effects(store: Store) -> None:
    seen: list[int] = []
    counter = [0]

    def count(transaction: Transaction) -> None:
        seen.append(counter[0])
        transaction.after_commit(lambda: counter.__setitem__(0, counter[0] + 1))

    for future in [store.submit(count, ["same"]) for _ in range(20)]:
        future.result()

    assert seen == list(range(20))


def test_operations_that_wait_together_share_a_commit(store: Store) -> None:
    commits: list[int] = []
    store.on_commit(lambda: commits.append(1))
    with held(store):
        futures = [store.submit(lambda _: None, [i]) for i in range(50)]

    for future in futures:
        future.result()

    # One for the operation that held the thread, one for all that waited.
    assert len(commits) == 2


def test_many_operations_of_one_key_do_not_break_up_the_commit_of_others_nor_change_their_order(store: Store) -> None:
    commits: list[int] = []
    order: list[tuple[str, int]] = []
    store.on_commit(lambda: commits.append(len(order)))
    with held(store):
        futures = []
        for i in range(20):
            for key in ("busy", f"other {i}"):
                futures.append(store.submit(lambda _, key=key, i=i: order.append((key, i)), [key]))
        futures.append(store.submit(lambda _: order.append(("alone", 0)), None))
        futures.append(store.submit(lambda _: order.append(("behind", 0)), ["behind"]))

    for future in futures:
        future.result()

    assert commits[1] == 21  # the first commit after the one that held the thread: all others, and one of the busy key
    assert [i for key, i in order if key == "busy"] == list(range(20))
    assert [key for key, _ in order[-2:]] == ["alone", "behind"]


def test_a_file_that_its_writer_has_dropped_is_not_named(store: Store) -> None:
    with written(store) as stored:
        pass

    with pytest.raises(Unavailable, match="cut off"):
        store.submit(placing(stored)).result()
    assert store.read(select(schema.blobs)) == []


def test_two_writers_of_the_same_bytes_do_not_disturb_each_other(store: Store) -> None:
    with written(store) as one, written(store) as two:
        with held(store):
            stored = store.submit(lambda transaction: transaction.place(one), ["one"])
            failed = store.submit(placing(two, fails=True), ["two"])
        assert stored.result() is None
        assert isinstance(failed.exception(), Unknown)

    assert content(store, one.digest) == LARGE


def test_a_disk_full_error_while_writing_stores_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", disk_full)

    with pytest.raises(StorageFull), written(store):
        pass

    assert list(store.blobs.files.incoming.iterdir()) == []


def test_a_disk_full_error_while_naming_a_file_stores_nothing(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written(sqlite_store) as stored:
        monkeypatch.setattr(os, "fsync", disk_full)
        with pytest.raises(StorageFull):
            sqlite_store.submit(placing(stored)).result()

    assert stored.digest not in sqlite_store.blobs.sizes
    assert sqlite_store.read(select(schema.blobs)) == []
    assert files(sqlite_store) == []


def test_a_full_database_fails_the_whole_commit_and_the_next_one_works(sqlite_store: Store) -> None:
    with sqlite_store._candidate.writers.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    raw = b"r" * MAX_ROW_BYTES

    def limit(pages: int) -> None:
        pragma = text(f"PRAGMA max_page_count = {pages}")
        sqlite_store.submit(lambda transaction: transaction.execute(pragma)).result()

    limit(pages)
    with pytest.raises(StorageFull, match="disk is full"):
        put(sqlite_store, raw)
    limit(1 << 30)
    stored = put(sqlite_store, raw)

    assert content(sqlite_store, stored.digest) == raw


def failing_commit(store: Store, monkeypatch: pytest.MonkeyPatch, code: int, *, is_done: bool) -> None:
    """From now on, each commit of a SQLite database fails, though it may be done."""
    dialect = store._candidate.writers.dialect
    commit = dialect.do_commit

    def fail(connection: PoolProxiedConnection) -> None:
        if is_done:
            commit(connection)
        error = sqlite3.OperationalError("on purpose")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(dialect, "do_commit", fail)


def test_a_commit_that_could_not_be_synced_may_come_back_so_its_file_stays_and_the_writer_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store.open(folder)) as store, monkeypatch.context() as patched, written(store) as stored:
        failing_commit(store, patched, sqlite3.SQLITE_IOERR_FSYNC, is_done=True)
        with pytest.raises(Unavailable, match=r"lost in a commit \(on purpose\); send the request again"):
            store.submit(placing(stored)).result()
        with pytest.raises(Unavailable):
            store.submit(lambda _: None)

    with closing(Store.open(folder)) as reopened:
        assert content(reopened, stored.digest) == LARGE


def test_a_commit_for_which_the_disk_has_no_room_is_undone(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, written(sqlite_store) as stored:
        failing_commit(sqlite_store, patched, sqlite3.SQLITE_FULL, is_done=False)
        with pytest.raises(StorageFull):
            sqlite_store.submit(placing(stored)).result()
    assert files(sqlite_store) == []

    put(sqlite_store, LARGE)
    assert content(sqlite_store, stored.digest) == LARGE


def test_who_gave_up_waiting_does_not_hinder_a_commit_that_fails(store: Store) -> None:
    with held(store):
        given_up = store.submit(lambda _: None, [1])
        failing = store.submit(lambda transaction: transaction.execute(text("SELECT nothing FROM nowhere")), [2])
        given_up.cancel()

    with pytest.raises(DBAPIError):
        failing.result()
    assert store.submit(lambda _: "still there").result() == "still there"


def test_a_long_query_holds_up_no_other(store: Store) -> None:
    begun, gate = threading.Event(), threading.Event()

    @event.listens_for(store._readers, "before_cursor_execute")
    def wait(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement == "SELECT 'long'":
            begun.set()
            gate.wait(10)

    with ThreadPoolExecutor(2) as threads:
        long = threads.submit(store.read, text("SELECT 'long'"))
        begun.wait()
        short = threads.submit(store.read, text("SELECT 'short'"))
        try:
            found = short.result(5)
        finally:
            gate.set()

    assert found == [("short",)]
    assert long.result() == [("long",)]


def test_a_second_process_on_the_same_folder_is_refused(store: Store, folder: Path) -> None:
    program = "import pathlib, sys, fedlens_server.store as s; s.Store.open(pathlib.Path(sys.argv[1]))"

    second = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=False)

    assert second.returncode == 1
    assert "is in use by another server" in second.stderr


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", r"has schema 9999; .* upgrade FedLens"),
        ("DROP TABLE alembic_version", r"tables of another program \(\w+\)"),
    ],
)
def test_a_database_of_a_newer_version_or_of_another_program_is_refused(
    address: StateAddress, change: str, reason: str
) -> None:
    Store.open(address).close()
    engine = address.open_database().engine(writes=True)
    with engine.begin() as connection:
        connection.execute(text(change))
    engine.dispose()

    with pytest.raises(StoreUnusable, match=reason):
        Store.open(address)


def test_a_file_that_is_no_database_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "server.sqlite3").write_bytes(b"not a database, but long enough to be looked at" * 10)

    with pytest.raises(StoreUnusable, match="cannot be used as a database"):
        Store.open(folder)


def test_a_folder_that_cannot_be_made_or_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    (tmp_path / "state" / "lock").mkdir(parents=True)

    with pytest.raises(StoreUnusable, match=r"/file cannot be written: File exists"):
        Store.open(tmp_path / "file")
    with pytest.raises(StoreUnusable, match=r"/state/lock cannot be written: Is a directory"):
        Store.open(tmp_path / "state")


def test_an_error_of_the_database_tells_nothing_of_what_was_to_be_written(store: Store) -> None:
    row = {"token": "trainers of ward 3", "uses": 1}

    def twice(transaction: Transaction) -> None:
        transaction.execute(insert(schema.token_uses), row)
        transaction.execute(insert(schema.token_uses), row)

    with pytest.raises(DBAPIError) as caught:
        store.submit(twice).result()

    assert "ward 3" not in str(caught.value)


def test_migrations_give_the_schema_of_this_version(store: Store) -> None:
    engine = store.database.engine()
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), schema.metadata)
    engine.dispose()

    assert differences == []


def test_commits_survive_power_loss(sqlite_store: Store) -> None:
    pragmas = ("journal_mode", "synchronous", "foreign_keys")
    with sqlite_store._candidate.writers.connect() as connection:
        found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in pragmas]

    assert found == ["wal", 2, 1]  # 2: FULL


@pytest.mark.parametrize("rows", [3, 3000])  # in a row of the database, and in a file
@pytest.mark.parametrize("floats", [blob.pb.DTYPE_FLOAT32, blob.pb.DTYPE_FLOAT16, blob.pb.DTYPE_INT8])
def test_stored_tensors_and_any_span_of_them_read_like_the_blob_itself(
    store: Store, rows: int, floats: blob.pb.Dtype
) -> None:
    values = np.random.default_rng(4).standard_normal((rows, 5, 7), np.float32)
    raw = blob.encode({"b": np.arange(3), "w": values}, floats=floats)
    stored, plain = store.tensors(put(store, raw).digest), blob.Blob.from_bytes(raw)
    whole = plain["w"].reshape(-1)
    buffer = np.empty(whole.size, np.float32)

    assert list(stored) == ["b", "w"]
    np.testing.assert_array_equal(stored["b"], plain["b"])
    for context in (nullcontext(), stored.opened(), nullcontext()):
        with context:
            np.testing.assert_array_equal(stored["w"], plain["w"])
            for start, stop in ((0, whole.size), (0, 1), (34, 36), (17, 60), (35, 70), (36, 37), (3, whole.size - 1)):
                np.testing.assert_array_equal(stored.span("w", start, stop), whole[start:stop])
                np.testing.assert_array_equal(stored.span("w", start, stop, buffer), whole[start:stop])


def test_an_opened_file_is_closed_again(store: Store) -> None:
    stored = store.tensors(put(store, blob.encode({"w": np.zeros(100_000, np.float32)})).digest)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))

    with stored.opened():
        during = len(list(descriptors.iterdir()))

    assert (during, len(list(descriptors.iterdir()))) == (before + 1, before)


def test_a_writer_that_cannot_go_on_says_so_and_takes_nothing_more(store: Store) -> None:
    broken = threading.Event()
    store.on_broken(broken.set)

    def fault() -> None:
        raise RuntimeError("the view would no longer be what the database holds")

    failed = store.submit(lambda transaction: transaction.after_commit(fault))

    with pytest.raises(RuntimeError):
        failed.result()
    assert broken.wait(timeout=10)
    with pytest.raises(Unavailable):
        store.submit(lambda transaction: None)


def test_a_state_without_one_of_its_blobs_is_not_taken_up(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path)) as store:
        kept, lost = put(store, LARGE), put(store, LARGE[::-1])
        places = [store.blobs.files.path(each.digest) for each in (kept, lost)]
    places[1].rename(tmp_path / "elsewhere")

    with pytest.raises(StoreUnusable, match=f"names blob {lost.digest.hex()}, which is not in .*or restore a backup"):
        Store.open(tmp_path)

    assert places[0].is_file()
    (tmp_path / "elsewhere").rename(places[1])
    Store.open(tmp_path).close()
