"""Blobs as objects of an S3 bucket, with the files of a folder as a cache of them.

    <prefix>/<sha256>/<random>

An object is written before the transaction whose row names it, and its key is never used again: whoever deletes the
object of a row that is gone cannot meet the object of a later row for the same bytes. It is deleted an hour after its
row, so that who has found the row can read it; an object that no row has named for a day is one of a transaction that
never committed, or of a server that ended within that hour.
"""

import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from math import inf
from pathlib import Path
from time import monotonic

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from fedlens_server.errors import StoreUnusable, Unavailable, Unknown
from fedlens_server.store.address import Bucket
from fedlens_server.store.incoming import Files, PendingBlob, storage_full
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

GRACE_S = 3600.0
SWEPT_AFTER_S = SWEEP_EVERY_S = 24 * 3600.0
AT_A_TIME = 16
RETRY_MS = 5_000
# A file that was asked for so short a time ago may still be about to be opened.
_IN_USE_S = 600.0
_KEY = re.compile("([0-9a-f]{64}|probe)/[0-9a-f]{32}")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d+ [A-Za-z ]+)")


def new_key(digest: bytes) -> str:
    """A key for a blob that no object has had."""
    return f"{digest.hex()}/{secrets.token_hex(16)}"


class ObjectStore:
    """The objects of a bucket. Credentials are found as by AWS's own tools: in the environment, or from the machine."""

    def __init__(self, bucket: Bucket) -> None:
        """Nothing is asked of it yet."""
        self.bucket = bucket
        self._store = S3Store(
            bucket.name,
            prefix=bucket.prefix or None,
            client_options={
                "connect_timeout": "5s",
                "read_timeout": "15s",
                "timeout": "900s",
                "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=15)},
        )

    def put(self, key: str, source: Path | bytes) -> None:
        """Write an object.

        Raises:
            Unavailable: The bucket cannot be reached or written. So in all functions.
        """
        with self._reaching():
            obstore.put(self._store, key, source)

    def read(self, key: str) -> Iterator[bytes]:
        """The bytes of an object, piece by piece."""
        with self._reaching():
            for piece in obstore.get(self._store, key).stream(min_chunk_size=1 << 20):
                yield bytes(piece)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, if they are there."""
        if gone := list(keys):
            with self._reaching():
                obstore.delete(self._store, gone)

    def list(self, prefix: str = "") -> Iterator[tuple[str, float, int]]:
        """The keys that begin with a prefix of whole parts, each with the time of its writing and its bytes."""
        with self._reaching():
            for batch in obstore.list(self._store, prefix or None):
                yield from ((found["path"], found["last_modified"].timestamp(), found["size"]) for found in batch)

    def check(self) -> None:
        """Write, read and delete an object.

        Raises:
            StoreUnusable: One of these is impossible.
        """
        key = f"probe/{secrets.token_hex(16)}"
        try:
            self.put(key, b"probe")
            b"".join(self.read(key))
            self.delete([key])
        except Unavailable as error:
            raise StoreUnusable(f"{self.bucket} cannot be used: {_reason(error.__cause__ or error)}") from error

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            told = f"the server's place of blobs cannot be reached ({_reason(error)}); try again later"
            raise Unavailable(told, RETRY_MS) from error


class Objects(Files):
    """Objects of a bucket, and files that are copies of them."""

    def __init__(self, folder: Path, store: ObjectStore, cache_bytes: int, durable: bool = True) -> None:
        """Files in `folder` take at most `cache_bytes`, but for those in use."""
        super().__init__(folder, durable)
        self._store = store
        self._cache_bytes = cache_bytes
        self._guard = threading.Lock()  # of all that follows
        self._cached: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # size and last use, the latest use last
        self._total = 0
        self._fetching: dict[bytes, threading.Lock] = {}
        self._unnamed: dict[str, float | None] = {}  # when they were first looked at
        self._next_sweep = 0.0

    def put(self, digest: bytes, path: Path) -> str:
        """As in `Files`."""
        key = new_key(digest)
        self._store.put(key, path)
        return key

    def take(self, blob: PendingBlob) -> None:
        """As in `Files`."""
        super().take(blob)
        self._add(blob.digest, blob.size, monotonic())

    def sync(self) -> None:
        """As in `Files`: a copy may be lost."""

    def bring(self, digest: bytes, size: int) -> Path:
        """As in `Files`.

        Raises:
            Unknown: It is not stored any more.
            Unavailable: It cannot be reached.
        """
        path = self.path(digest)
        with self._guard:
            if self._use(digest) and path.exists():
                return path
            fetching = self._fetching.setdefault(digest, threading.Lock())
        with fetching:
            with self._guard:
                if self._use(digest) and path.exists():
                    return path
            try:
                self._fetch(digest, size)
            finally:
                with self._guard:
                    self._fetching.pop(digest, None)
        return path

    def bring_all(self, sizes: Mapping[bytes, int]) -> None:
        """As in `Files`."""
        with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="fedlens-objects") as pool:
            list(pool.map(self.bring, sizes.keys(), sizes.values()))

    def drop(self, digest: bytes, key: str | None, *, stored_again: bool = False) -> None:
        """As in `Files`; the object is deleted in time."""
        with self._guard:  # a fetch gives no file a name of which the blob was dropped
            super().drop(digest, key, stored_again=stored_again)
            if not stored_again:
                self._total -= self._cached.pop(digest, (0, 0.0))[0]
        if key is not None:
            self.discard(key)

    def discard(self, key: str) -> None:
        """As in `Files`."""
        with self._guard:
            self._unnamed.setdefault(key, None)

    def tidy(self, now: float) -> None:
        """As in `Files`: what has had no name for `GRACE_S`, and copies beyond the cache's limit.

        Once a day it compares all objects with the names: it looks for those of the day before that have none, and
        tells operators of names that have no object.
        """
        self._evict(self._cache_bytes)
        if now >= self._next_sweep:
            named = set(self.keys.copy().values())
            missing = named.copy()  # an object is older than its name, and is deleted after it, by this function
            for key, written_at, _ in self._store.list():
                missing.discard(key)
                if written_at < now - SWEPT_AFTER_S and key not in named and _KEY.fullmatch(key):
                    self.discard(key)
            if missing:
                events.note(Event.OBJECTS_MISSING, objects=len(missing), such_as=min(missing))
            self._next_sweep = now + SWEEP_EVERY_S
        with self._guard:
            due = {key for key, since in self._unnamed.items() if since is not None and since <= now - GRACE_S}
            self._unnamed = {key: now if since is None else since for key, since in self._unnamed.items()}
        self._store.delete(sorted(due - set(self.keys.copy().values())))
        with self._guard:
            for key in due:
                del self._unnamed[key]

    def make_room(self) -> None:
        """As in `Files`: all copies that are not in use."""
        self._evict(0)

    def sweep(self, sizes: Mapping[bytes, int], *, keeps_unknown: bool) -> None:
        """As in `Files`, and take up the copies that are there."""
        super().sweep(sizes, keeps_unknown=keeps_unknown)
        for digest in self.keys:
            path = self.path(digest)
            if path.exists() and path.stat().st_size == sizes[digest]:
                self._add(digest, sizes[digest], -inf)

    def _use(self, digest: bytes) -> bool:
        found = self._cached.get(digest)
        if found is None:
            return False
        self._cached[digest] = found[0], monotonic()
        self._cached.move_to_end(digest)
        return True

    def _fetch(self, digest: bytes, size: int) -> None:
        key = self.keys.get(digest)
        if key is None:
            raise Unknown(f"blob {digest.hex()} is not stored any more")
        fresh = self.incoming / secrets.token_hex(16)
        try:
            seen = sha256()
            with storage_full(self.make_room), fresh.open("xb") as file:
                for piece in self._store.read(key):
                    seen.update(piece)
                    file.write(piece)
                file.flush()
                if self.durable:
                    os.fsync(file.fileno())
            if seen.digest() != digest:
                raise Unavailable(f"object {key} has other bytes than were stored; restore a backup", RETRY_MS)
            with self._guard:
                if digest not in self.keys:
                    raise Unknown(f"blob {digest.hex()} is not stored any more")
                fresh.rename(self.path(digest))
            self._add(digest, size, monotonic())
        except Unavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                told = f"object {key} is gone ({_reason(error.__cause__)}), but the database names it; restore a backup"
                raise Unavailable(told, RETRY_MS) from error
            raise
        finally:
            fresh.unlink(missing_ok=True)

    def _add(self, digest: bytes, size: int, used: float) -> None:
        with self._guard:
            self._total += size - self._cached.pop(digest, (0, 0.0))[0]
            self._cached[digest] = size, used
        self._evict(self._cache_bytes)

    def _evict(self, limit: int) -> None:
        """Delete copies until they take `limit` bytes, but none in use."""
        with self._guard:
            while self._total > limit:
                oldest, (its_size, used) = next(iter(self._cached.items()))
                if monotonic() - used < _IN_USE_S:
                    break
                del self._cached[oldest]
                self._total -= its_size
                self.path(oldest).unlink(missing_ok=True)


def _reason(error: BaseException) -> str:
    """The service's own code for an error, or the first line of the text."""
    text = str(error)
    if found := _CODE.search(text) or _STATUS.search(text):
        return found[1]
    return text.partition("\n")[0].strip()
