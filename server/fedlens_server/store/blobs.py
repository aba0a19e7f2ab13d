"""Blobs by their SHA-256: small ones in the database, larger ones as files or objects, some computed on demand."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedlens_proto.blob import Array, Layout
from fedlens_server.errors import Unknown
from fedlens_server.store.incoming import MAX_ROW_BYTES, Files

MAX_CACHE_BYTES = 32 << 20


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


class Blobs:
    """The blobs that the database names, stored or computed; readable from any thread."""

    def __init__(self, files: Files, read_row: Callable[[bytes], bytes | None]) -> None:
        """`files` holds the large ones; `read_row` reads the bytes in a row."""
        self.files = files
        self.sizes: dict[bytes, int] = {}  # of every stored blob
        self.kept_until: dict[bytes, float] = {}  # of bundle parts that may have no task yet
        self.computed: dict[bytes, ComputedBlob] = {}  # blobs that were not stored when they were named
        self._read_row = read_row
        self._placing: dict[bytes, bytes] = {}
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._kept_files: list[tuple[bytes, str | None]] | None = None  # forgotten since `keep_files`

    def size(self, digest: bytes) -> int:
        """The size in bytes of a stored or computed blob."""
        size = self.sizes.get(digest)
        return self.computed[digest].size if size is None else size

    def locate(self, digest: bytes) -> Location:
        """The location of a blob.

        Raises:
            Unknown: The blob is not stored.
            Unavailable: Its bytes are elsewhere, and cannot be reached.
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
        if size is not None:
            return Location(size, path=self.files.bring(digest, size))
        path = self.files.path(digest)
        if not path.exists():  # nor is it being placed
            raise Unknown(f"blob {digest.hex()} is not stored here")
        return Location(path.stat().st_size, path=path)

    def bring(self, digests: Iterable[bytes]) -> None:
        """Bring the bytes of stored blobs here, many at a time, if they are elsewhere. Errors as in `locate`."""
        sizes = {digest: size for digest in digests if (size := self.sizes.get(digest, 0)) > MAX_ROW_BYTES}
        self.files.bring_all(sizes)

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
            key = self.files.keys.pop(digest, None)
            if self._kept_files is None:
                self.files.drop(digest, key)
            else:
                self._kept_files.append((digest, key))

    @property
    def keeps_files(self) -> bool:
        """True between `keep_files` and `end_keeping_files`."""
        return self._kept_files is not None

    def keep_files(self) -> None:
        """From now on, leave the bytes of forgotten blobs; called on the writing thread, as its end is."""
        self._kept_files = self._kept_files or []  # there may be some of a backup whose end could not be written

    def end_keeping_files(self) -> None:
        """Delete the bytes of the blobs that were forgotten meanwhile."""
        kept, self._kept_files = self._kept_files or [], None
        for digest, key in kept:
            self.files.drop(digest, key, stored_again=digest in self.sizes)

    def begin_placing(self, digest: bytes, raw: bytes) -> None:
        """Make the bytes of a row readable before its transaction ends."""
        with self._lock:
            self._placing[digest] = raw

    def end_placing(self) -> None:
        """End what `begin_placing` began, when the transaction has ended."""
        with self._lock:
            self._placing.clear()
