"""Blobs by their SHA-256: small ones in the database, larger ones as files.

    blobs/<sha256>       has a row in the table `blobs`; otherwise deleted at the next start
    blobs/incoming/<n>   being written or waiting for its transaction; deleted at the next start

A file is written and synced under its temporary name. The transaction that stores it renames it, and syncs the folder
before it commits.
"""

import errno
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest, sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from fedlens_proto.blob import Array, Layout
from fedlens_server.errors import Unknown
from fedlens_server.store.dialects import full

MAX_ROW_BYTES = 64 << 10
MAX_CACHE_BYTES = 32 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class PendingBlob:
    """A blob that is on disk, or small enough for a row, and waits for the transaction that stores it."""

    digest: bytes
    size: int
    raw: bytes | None = None  # the bytes themselves, if they fit a row
    path: Path | None = None  # otherwise the synced temporary file


class ComputedTensors(Protocol):
    """Tensors that are computed from stored ones when they are read."""

    @property
    def layout(self) -> Layout:
        """The layout of their blob."""
        ...

    def span(self, name: str, start: int, stop: int, buffer: Array | None = None) -> Array:
        """As `StoredTensors.span`."""
        ...


@dataclass(frozen=True, slots=True)
class ComputedBlob:
    """A blob that is computed when it is read."""

    size: int
    tensors: ComputedTensors
    sources: frozenset[bytes]  # digests of the stored blobs that it is computed from


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a blob's bytes: exactly one of `raw`, `path` and `computed` is set."""

    size: int
    raw: bytes | None = None
    path: Path | None = None
    computed: ComputedTensors | None = None


@contextmanager
def storage_full() -> Iterator[None]:
    """Turn the system's error for a full disk into `StorageFull`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise full() from error
        raise


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a file or folder, to read or sync it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class IncomingBlob:
    """A blob being written: in memory up to `MAX_ROW_BYTES`, in a temporary file beyond.

    Use as a context manager that stays open until the transaction that stores the blob has ended; leaving it removes
    a temporary file that no transaction has renamed.
    """

    def __init__(self, folder: Path, durable: bool = True) -> None:
        """Use `Store.incoming` instead."""
        self._folder = folder
        self._durable = durable
        self._stream: BinaryIO = BytesIO()
        self._path: Path | None = None
        self.size = 0  # bytes so far

    def write(self, chunk: bytes | memoryview) -> int:
        """Append bytes. Blocks on the disk beyond `MAX_ROW_BYTES`.

        Raises:
            StorageFull: There is no room.
        """
        with storage_full():
            if self._path is None and self.size + len(chunk) > MAX_ROW_BYTES:
                self._spill()
            self._stream.write(chunk)
        self.size += len(chunk)
        return len(chunk)

    @property
    def in_memory(self) -> bool:
        """True if the next `write` of at most `MAX_ROW_BYTES - size` bytes does not touch the disk."""
        return self._path is None

    def finish(self, digest: bytes | None = None) -> PendingBlob:
        """Sync the bytes to disk. A given `digest` is trusted; otherwise it is computed. Blocks on the disk for a file.

        Raises:
            StorageFull: There is no room.
        """
        if self._path is None:
            assert isinstance(self._stream, BytesIO)
            raw = self._stream.getvalue()
            return PendingBlob(digest or sha256(raw).digest(), self.size, raw=raw)
        with storage_full():
            self._stream.flush()
            if self._durable:
                os.fsync(self._stream.fileno())
            self._stream.close()
        if digest is None:
            with self._path.open("rb") as file:
                digest = file_digest(file, "sha256").digest()
        return PendingBlob(digest, self.size, path=self._path)

    def __enter__(self) -> Self:
        """The blob itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Remove the temporary file, unless a transaction has renamed it."""
        with suppress(OSError):  # a full disk may prevent the flush of bytes that are dropped anyway
            self._stream.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _spill(self) -> None:
        assert isinstance(self._stream, BytesIO)
        path = self._folder / secrets.token_hex(16)
        file = path.open("xb")
        self._path = path
        start, self._stream = self._stream.getvalue(), file
        file.write(start)


class Blobs:
    """The blobs that the database names, stored or computed; readable from any thread."""

    def __init__(self, folder: Path, read_row: Callable[[bytes], bytes | None], durable: bool = True) -> None:
        """`folder` holds the files; `read_row` reads the bytes in a row."""
        self.folder = folder
        self._durable = durable
        self.incoming_folder = folder / "incoming"
        self.incoming_folder.mkdir(parents=True, exist_ok=True)
        self.sizes: dict[bytes, int] = {}  # of every stored blob
        self.kept_until: dict[bytes, float] = {}  # of bundle parts that may have no task yet
        self.computed: dict[bytes, ComputedBlob] = {}  # blobs that were not stored when they were named
        self._read_row = read_row
        self._placing: dict[bytes, bytes] = {}
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._kept_files: set[bytes] | None = None  # forgotten since `keep_files`

    def path(self, digest: bytes) -> Path:
        """The file of a blob that does not fit a row."""
        return self.folder / digest.hex()

    def size(self, digest: bytes) -> int:
        """The size in bytes of a stored or computed blob."""
        size = self.sizes.get(digest)
        return self.computed[digest].size if size is None else size

    def locate(self, digest: bytes) -> Location:
        """The location of a blob.

        Raises:
            Unknown: The blob is not stored.
        """
        with self._lock:
            raw = self._placing.get(digest, self._cache.get(digest))
            if digest in self._cache:
                self._cache.move_to_end(digest)
        if raw is not None:
            return Location(len(raw), raw=raw)
        size = self.sizes.get(digest)
        if size is not None and size <= MAX_ROW_BYTES:
            raw = self._read_row(digest)
            if raw is not None:
                self.remember(digest, raw)
                return Location(size, raw=raw)
        computed = self.computed.get(digest) if size is None else None
        if computed is not None:
            return Location(computed.size, computed=computed.tensors)
        path = self.path(digest)
        if size is None and not path.exists():
            raise Unknown(f"blob {digest.hex()} is not stored here")
        return Location(path.stat().st_size if size is None else size, path=path)

    def remember(self, digest: bytes, raw: bytes) -> None:
        """Cache the bytes of a row or of a small computed blob in memory."""
        with self._lock:
            if digest not in self._cache:
                self._cache[digest] = raw
                self._cached_bytes += len(raw)
                while self._cached_bytes > MAX_CACHE_BYTES:
                    _, dropped = self._cache.popitem(last=False)
                    self._cached_bytes -= len(dropped)

    def drop_cached(self, digest: bytes) -> None:
        """Drop a blob's bytes from the cache."""
        with self._lock:
            raw = self._cache.pop(digest, None)
            self._cached_bytes -= len(raw) if raw is not None else 0

    def forget(self, digest: bytes) -> None:
        """Remove the bytes of a blob that the database no longer names."""
        self.kept_until.pop(digest, None)
        size = self.sizes.pop(digest, 0)
        self.drop_cached(digest)
        if size > MAX_ROW_BYTES:
            if self._kept_files is None:
                self.path(digest).unlink(missing_ok=True)
            else:
                self._kept_files.add(digest)

    @property
    def keeps_files(self) -> bool:
        """True between `keep_files` and `end_keeping_files`."""
        return self._kept_files is not None

    def keep_files(self) -> None:
        """From now on, leave the files of forgotten blobs; called on the writing thread, as its end is."""
        self._kept_files = set()

    def end_keeping_files(self) -> None:
        """Delete the files of the blobs that were forgotten meanwhile and not stored again."""
        kept, self._kept_files = self._kept_files or set(), None
        for digest in kept - self.sizes.keys():
            self.path(digest).unlink(missing_ok=True)

    def begin_placing(self, digest: bytes, raw: bytes) -> None:
        """Make the bytes of a row readable before its transaction ends."""
        with self._lock:
            self._placing[digest] = raw

    def end_placing(self) -> None:
        """End what `begin_placing` began, when the transaction has ended."""
        with self._lock:
            self._placing.clear()

    def sync_folder(self) -> None:
        """Sync renames to disk, if the store is durable."""
        if not self._durable:
            return
        with opened(self.folder) as descriptor:
            os.fsync(descriptor)

    def sweep_files(self) -> None:
        """Delete temporary files, and files that the database does not name."""
        for path in self.incoming_folder.iterdir():
            path.unlink()
        named = {digest.hex() for digest, size in self.sizes.items() if size > MAX_ROW_BYTES}
        for path in self.folder.iterdir():
            if path.is_file() and path.name not in named:
                path.unlink()
