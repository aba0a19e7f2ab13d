"""Bytes by their SHA-256: small ones in the database's row, larger ones as files.

    blobs/<sha256>       named by a row of the table `blobs`, or swept at the next start
    blobs/incoming/<n>   being written or waiting for their transaction; swept at the next start

A file is written and synced under its temporary name, then renamed by the transaction that names it, which syncs the
folder before it commits.
"""

import errno
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from fedlens_proto.blob import Array, Layout
from fedlens_server.errors import StorageFull, Unknown

MAX_ROW_BYTES = 64 << 10
MAX_CACHE_BYTES = 32 << 20
FULL_RETRY_MS = 10_000
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """Bytes that are on disk (or small enough for a row) and wait for the transaction that names them."""

    digest: bytes
    size: int
    raw: bytes | None = None  # the bytes themselves, when they fit a row
    path: Path | None = None  # else the synced temporary file


class Computed(Protocol):
    """Tensors whose blob is stored nowhere: they are computed from stored ones when they are read."""

    @property
    def layout(self) -> Layout:
        """Of the blob."""
        ...

    def span(self, name: str, start: int, stop: int, buffer: Array | None = None) -> Array:
        """As of `StoredTensors`."""
        ...


@dataclass(frozen=True, slots=True)
class ComputedBlob:
    """A blob that is computed when it is read."""

    size: int
    tensors: Computed
    sources: frozenset[bytes]  # digests of the stored blobs from which it is computed


@dataclass(frozen=True, slots=True)
class Location:
    """Where bytes can be read: exactly one of `raw`, `path` and `computed` is set."""

    size: int
    raw: bytes | None = None
    path: Path | None = None
    computed: Computed | None = None


@contextmanager
def storage_full() -> Iterator[None]:
    """Turn the system's word that the disk is full into `StorageFull`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise full() from error
        raise


def full() -> StorageFull:
    """The error for a disk without room."""
    return StorageFull("the server's disk is full; nothing was stored, try again later", FULL_RETRY_MS)


class IncomingBlob:
    """Bytes on their way in: in memory up to `MAX_ROW_BYTES`, in a temporary file beyond.

    Use as a context manager that stays open until the call that stores the blob has been answered;
    on leaving, a temporary file that no transaction has taken over is removed.
    """

    def __init__(self, folder: Path, durable: bool = True) -> None:
        """Use `Store.incoming`."""
        self._folder = folder
        self._durable = durable
        self._stream: BinaryIO = BytesIO()
        self._path: Path | None = None
        self._size = 0

    def write(self, chunk: bytes | memoryview) -> int:
        """Take the next bytes. Blocks on the disk once more than `MAX_ROW_BYTES` have come.

        Raises:
            StorageFull: There is no room.
        """
        with storage_full():
            if self._path is None and self._size + len(chunk) > MAX_ROW_BYTES:
                self._spill()
            self._stream.write(chunk)
        self._size += len(chunk)
        return len(chunk)

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._size

    @property
    def in_memory(self) -> bool:
        """Whether the next `write` of at most `MAX_ROW_BYTES - size` bytes touches no disk."""
        return self._path is None

    def finish(self, digest: bytes | None = None) -> StoredBlob:
        """Sync what was written; `digest` is trusted where given, else computed. Blocks on the disk for a file.

        Raises:
            StorageFull: There is no room.
        """
        if self._path is None:
            assert isinstance(self._stream, BytesIO)
            raw = self._stream.getvalue()
            return StoredBlob(digest or sha256(raw).digest(), self._size, raw=raw)
        with storage_full():
            self._stream.flush()
            if self._durable:
                os.fsync(self._stream.fileno())
            self._stream.close()
        if digest is None:
            with self._path.open("rb") as file:
                hashed = sha256()
                while chunk := file.read(1 << 20):
                    hashed.update(chunk)
                digest = hashed.digest()
        return StoredBlob(digest, self._size, path=self._path)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Drop a temporary file that nobody took over."""
        try:
            self._stream.close()  # what a full disk keeps from being flushed is dropped anyway
        except OSError:
            pass
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
    """Where everything is that the database names; readable from any thread."""

    def __init__(self, folder: Path, read_row: Callable[[bytes], bytes | None], durable: bool = True) -> None:
        """`folder` holds the files; `read_row` gets the bytes of a row."""
        self.folder = folder
        self._durable = durable
        self.incoming_folder = folder / "incoming"
        self.incoming_folder.mkdir(parents=True, exist_ok=True)
        self.sizes: dict[bytes, int] = {}  # of every blob that the database names
        self.kept_until: dict[bytes, float] = {}  # of parts that may have no task yet
        self.computed: dict[bytes, ComputedBlob] = {}  # that are not stored, or were not when they were named
        self._read_row = read_row
        self._placing: dict[bytes, bytes] = {}
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()

    def path(self, digest: bytes) -> Path:
        """The file of a blob that does not fit a row."""
        return self.folder / digest.hex()

    def size(self, digest: bytes) -> int:
        """Bytes of a blob that is stored or computed."""
        size = self.sizes.get(digest)
        return self.computed[digest].size if size is None else size

    def locate(self, digest: bytes) -> Location:
        """Where a blob is.

        Raises:
            Unknown: It is not stored.
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
        """Keep the bytes of a row, or of a small blob that is computed, in memory while there is room."""
        with self._lock:
            if digest not in self._cache:
                self._cache[digest] = raw
                self._cached_bytes += len(raw)
                while self._cached_bytes > MAX_CACHE_BYTES:
                    _, dropped = self._cache.popitem(last=False)
                    self._cached_bytes -= len(dropped)

    def drop_cached(self, digest: bytes) -> None:
        """Keep a blob's bytes in memory no more."""
        with self._lock:
            raw = self._cache.pop(digest, None)
            self._cached_bytes -= len(raw) if raw is not None else 0

    def forget(self, digest: bytes) -> None:
        """The database names it no more: remove its bytes."""
        self.kept_until.pop(digest, None)
        size = self.sizes.pop(digest, 0)
        self.drop_cached(digest)
        if size > MAX_ROW_BYTES:
            self.path(digest).unlink(missing_ok=True)

    def begin_placing(self, digest: bytes, raw: bytes) -> None:
        """Make a row's bytes readable before their transaction has ended."""
        with self._lock:
            self._placing[digest] = raw

    def end_placing(self) -> None:
        """The transaction has ended."""
        with self._lock:
            self._placing.clear()

    def sync_folder(self) -> None:
        """Make renames durable, if that is wanted."""
        if not self._durable:
            return
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sweep_files(self) -> None:
        """Remove temporary files, and files that the database does not name."""
        for path in self.incoming_folder.iterdir():
            path.unlink()
        named = {digest.hex() for digest, size in self.sizes.items() if size > MAX_ROW_BYTES}
        for path in self.folder.iterdir():
            if path.is_file() and path.name not in named:
                path.unlink()
