"""Blobs in a bucket: written before their rows, deleted after them, and brought back when they are read."""

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import select

from fedlens_server.errors import StorageFull, StoreUnusable, Unavailable, Unknown
from fedlens_server.store import StateAddress, Store, Transaction, objects, schema
from fedlens_server.store.address import Bucket
from fedlens_server.store.objects import GRACE_S, SWEPT_AFTER_S, ObjectStore
from tests.server.elsewhere import Gateway, Link, running_gateway
from tests.server.telemetry.logs import logged

LARGE = bytes(range(256)) * 1024
DIGEST = sha256(LARGE).digest()
NOW = 4e9  # long after everything that tests write


@pytest.fixture
def address(gateway: Gateway, folder: Path) -> StateAddress:
    """Blobs in a bucket, and a database that is a file, which these tests leave alone."""
    return StateAddress(folder=folder, bucket=gateway.bucket())


@pytest.fixture
def store(address: StateAddress) -> Iterator[Store]:
    with closing(Store.open(address)) as opened:
        yield opened


def put(store: Store, raw: bytes = LARGE) -> bytes:
    with store.incoming() as incoming:
        incoming.write(raw[:1])
        incoming.write(raw[1:])
        stored = incoming.finish()
        store.submit(lambda transaction: transaction.place(stored)).result()
    return stored.digest


def delete(store: Store, digest: bytes = DIGEST) -> None:
    store.submit(lambda transaction: store.delete_blobs(transaction, [digest])).result()


def keys(address: StateAddress) -> list[str]:
    assert address.bucket is not None
    return sorted(key for key, *_ in ObjectStore(address.bucket).list())


def named(store: Store) -> list[str]:
    return sorted(row.object for row in store.read(select(schema.blobs.c.object)))


def content(store: Store, digest: bytes = DIGEST) -> bytes:
    path = store.blobs.locate(digest).path
    assert path is not None
    return path.read_bytes()


def test_a_large_blob_is_an_object_that_its_row_names(store: Store, address: StateAddress) -> None:
    put(store)
    put(store, b"small")

    (key,) = keys(address)
    assert key.startswith(f"{DIGEST.hex()}/")
    assert [row.object for row in store.read(select(schema.blobs).order_by(schema.blobs.c.size))] == [None, key]


def test_a_blob_is_read_on_a_machine_that_has_no_copy(address: StateAddress, tmp_path: Path) -> None:
    with closing(Store.open(address)) as store:
        put(store)
        store.blobs.files.path(DIGEST).unlink()

        assert content(store) == LARGE
        assert store.blobs.files.path(DIGEST).exists()


def test_many_blobs_are_brought_at_a_time(store: Store) -> None:
    digests = [put(store, os.urandom(70_000)) for _ in range(20)]
    for digest in digests:
        store.blobs.files.path(digest).unlink()

    store.blobs.bring([*digests, put(store, b"small"), bytes(32)])

    assert all(store.blobs.files.path(digest).exists() for digest in digests)


def test_an_object_is_deleted_an_hour_after_its_row(store: Store, address: StateAddress) -> None:
    put(store)
    delete(store)
    store.tidy(NOW)
    assert len(keys(address)) == 1

    store.tidy(NOW + GRACE_S - 1)
    assert len(keys(address)) == 1
    store.tidy(NOW + GRACE_S)

    assert keys(address) == []
    with pytest.raises(Unknown):
        store.blobs.locate(DIGEST)


def test_the_deletion_of_a_blob_does_not_meet_the_same_bytes_that_are_stored_again(
    store: Store, address: StateAddress
) -> None:
    put(store)
    delete(store)
    put(store)
    for hours in range(30):
        store.tidy(NOW + hours * GRACE_S)

    assert keys(address) == named(store)
    store.blobs.files.path(DIGEST).unlink()
    assert content(store) == LARGE


def test_objects_that_no_row_has_named_for_a_day_are_swept_and_others_stay(store: Store, address: StateAddress) -> None:
    put(store)
    assert address.bucket is not None
    bucket = ObjectStore(address.bucket)
    left = f"{DIGEST.hex()}/{'0' * 32}"
    bucket.put(left, LARGE)
    bucket.put("somebody/else's", b"note")
    (written_at,) = (written_at for key, written_at, _ in bucket.list() if key == left)

    store.tidy(written_at + SWEPT_AFTER_S - 1)
    store.tidy(written_at + SWEPT_AFTER_S - 1 + GRACE_S)
    assert left in keys(address)
    store.tidy(written_at + 2 * SWEPT_AFTER_S)
    assert left in keys(address)
    store.tidy(written_at + 2 * SWEPT_AFTER_S + GRACE_S)

    assert keys(address) == sorted([*named(store), "somebody/else's"])


def test_what_was_written_for_a_transaction_that_failed_is_deleted(store: Store, address: StateAddress) -> None:
    def failing(transaction: Transaction) -> None:
        transaction.place(stored)
        raise Unknown("on purpose")

    with store.incoming() as incoming:
        incoming.write(LARGE)
        stored = incoming.finish()
        with pytest.raises(Unknown):
            store.submit(failing).result()
    assert len(keys(address)) == 1
    store.tidy(NOW)
    store.tidy(NOW + GRACE_S)

    assert keys(address) == []
    assert not store.blobs.files.path(DIGEST).exists()


def test_the_oldest_copies_leave_a_cache_that_is_full_but_not_those_in_use(
    address: StateAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = StateAddress(folder=address.folder, bucket=address.bucket, cache_bytes=150_000)
    with closing(Store.open(small)) as store:
        first, second, third = (put(store, os.urandom(70_000)) for _ in range(3))
        assert store.blobs.files.path(first).exists()  # the cache is over its limit, for all have just been used

        monkeypatch.setattr(objects, "_IN_USE_S", 0.0)
        fourth = put(store, os.urandom(70_000))

        here = [store.blobs.files.path(each).exists() for each in (first, second, third, fourth)]
        assert here == [False, False, True, True]
        assert sha256(content(store, first)).digest() == first


def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "monotonic", lambda: time.monotonic() + 3600)


def copies(store: Store) -> list[bytes]:
    return sorted(bytes.fromhex(path.name) for path in store.blobs.files.folder.iterdir() if path.is_file())


@pytest.mark.parametrize("coming", [lambda store, first: put(store), content], ids=["upload", "fetch"])
def test_a_disk_that_copies_have_filled_has_room_again_once_they_are_not_in_use(
    store: Store, monkeypatch: pytest.MonkeyPatch, coming: Callable[[Store, bytes], bytes]
) -> None:
    first, *others = (put(store, os.urandom(70_000)) for _ in range(4))
    store.blobs.files.path(first).unlink()

    def sync(_: int) -> None:
        if copies(store) == sorted(others):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(StorageFull):
        coming(store, first)
    assert copies(store) == sorted(others)

    an_hour_later(monkeypatch)
    with pytest.raises(StorageFull):
        coming(store, first)
    coming(store, first)

    assert len(copies(store)) == 1
    for digest in others:
        assert sha256(content(store, digest)).digest() == digest


def test_copies_beyond_the_limit_go_once_they_are_not_in_use_and_at_a_start(
    address: StateAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = StateAddress(folder=address.folder, bucket=address.bucket, cache_bytes=150_000)
    with closing(Store.open(small)) as store:
        first, *others = (put(store, os.urandom(70_000)) for _ in range(3))
        store.tidy(NOW)
        assert len(copies(store)) == 3
        an_hour_later(monkeypatch)
        store.tidy(NOW)
        assert copies(store) == sorted(others)
        monkeypatch.undo()
        content(store, first)
        assert len(copies(store)) == 3

    with closing(Store.open(small)) as reopened:
        assert len(copies(reopened)) == 2


def test_an_object_that_is_gone_is_told_at_the_start_and_whenever_it_is_wanted(address: StateAddress) -> None:
    with closing(Store.open(address)) as store:
        put(store)
        (lost,) = keys(address)
        put(store, LARGE[::-1])
    assert address.bucket is not None
    ObjectStore(address.bucket).delete([lost])

    with closing(Store.open(address)) as store:
        with logged("human") as log:
            store.tidy(NOW)
        store.blobs.files.path(DIGEST).unlink()
        with pytest.raises(Unavailable, match=rf"^object {lost} is gone \(NoSuchKey\), .*; restore a backup$"):
            store.blobs.locate(DIGEST)

    assert f"WARNING objects-missing objects=1 such_as={lost}" in str(log)


def test_an_object_with_other_bytes_is_not_taken_for_the_blob(store: Store, address: StateAddress) -> None:
    put(store)
    store.blobs.files.path(DIGEST).unlink()
    assert address.bucket is not None
    ObjectStore(address.bucket).put(keys(address)[0], LARGE[::-1])

    with pytest.raises(Unavailable, match="has other bytes than were stored"):
        store.blobs.locate(DIGEST)
    assert not store.blobs.files.path(DIGEST).exists()


def test_without_its_bucket_a_store_refuses_large_blobs_and_reads_its_copies(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_gateway() as gateway:
        for name, value in gateway.environment().items():
            monkeypatch.setenv(name, value)
        with closing(Store.open(StateAddress(folder=folder, bucket=gateway.bucket()))) as store:
            put(store)
            gateway.kill()
            with pytest.raises(Unavailable, match="place of blobs cannot be reached"):
                put(store, LARGE[::-1])
            put(store, b"small")
            assert content(store) == LARGE
            gateway.start()
            put(store, LARGE[::-1])

            store.blobs.files.path(DIGEST).unlink()
            assert content(store) == LARGE


def test_a_network_that_is_cut_in_the_middle_is_told_and_nothing_by_halves_is_kept(
    gateway: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Link(gateway.port)) as link:
        for name, value in gateway.environment(link.port).items():
            monkeypatch.setenv(name, value)
        with closing(Store.open(StateAddress(folder=folder, bucket=gateway.bucket()))) as store:
            put(store)
            store.blobs.files.path(DIGEST).unlink()
            link.cut()
            with pytest.raises(Unavailable):
                store.blobs.locate(DIGEST)
            assert list(store.blobs.files.incoming.iterdir()) == []
            link.go_on()

            assert content(store) == LARGE


@pytest.mark.parametrize("times", [100, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_no_row_is_ever_without_its_object(store: Store, address: StateAddress, times: int) -> None:
    raws = [bytes([i]) * 66_000 for i in range(3)]
    digests = [sha256(raw).digest() for raw in raws]
    done = threading.Event()

    def deleting() -> None:
        chance = random.Random(1)
        while not done.is_set():
            delete(store, chance.choice(digests))

    clock = [NOW]

    def tidying() -> None:
        while not done.is_set():
            store.tidy(clock[0])

    beside = [threading.Thread(target=each) for each in (deleting, tidying)]
    for thread in beside:
        thread.start()
    chance = random.Random(2)
    placed = 0
    try:
        for _ in range(times):
            # An S3 server on a file system refuses a key whose folder a deletion is just taking away.
            with suppress(Unavailable):
                put(store, chance.choice(raws))
                placed += 1
            # Never while an object is written that its transaction is to name: that takes less than the grace.
            clock[0] += GRACE_S / 2
    finally:
        done.set()
        for thread in beside:
            thread.join()

    assert placed > times / 2
    assert set(named(store)) <= set(keys(address))
    for digest in digests:
        with suppress(Unknown):
            store.blobs.files.path(digest).unlink(missing_ok=True)
            assert sha256(content(store, digest)).digest() == digest


@pytest.mark.parametrize(
    ("bucket", "secret", "reason"),
    [("bucket-nowhere", None, "NoSuchBucket"), (None, "wrong", "SignatureDoesNotMatch")],
)
def test_a_bucket_that_is_not_there_or_may_not_be_used_is_named_in_one_line(
    gateway: Gateway,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    bucket: str | None,
    secret: str | None,
    reason: str,
) -> None:
    found = Bucket(bucket, "") if bucket else gateway.bucket()
    if secret is not None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)

    with pytest.raises(StoreUnusable, match=rf"{found} cannot be used: {reason}$"):
        Store.open(StateAddress(folder=folder, bucket=found))


def test_a_state_whose_blobs_are_elsewhere_than_the_config_says_is_refused(address: StateAddress) -> None:
    with closing(Store.open(address)) as store:
        put(store)

    with pytest.raises(StoreUnusable, match=r"names blobs that are objects, and server\.blobs is unset"):
        Store.open(address.folder)
