"""Blobs on their way in, and the files of those that do not fit a row.

    blobs/<sha256>       has a row in the table `blobs`, or in another state's; otherwise deleted at the next start
    blobs/incoming/<n>   being written or waiting for its transaction; deleted at the next start

A file is written and synced under its temporary name. The transaction that stores it renames it, and syncs the folder
before it commits.
"""

import errno
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest, sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Self

from fedlens_server.store.dialects import full

MAX_ROW_BYTES = 64 << 10
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class PendingBlob:
    """A blob that is on disk, or small enough for a row, and waits for the transaction that stores it."""

    digest: bytes
    size: int
    raw: bytes | None = None  # the bytes themselves, if they fit a row
    path: Path | None = None  # otherwise the synced temporary file
    key: str | None = None  # and that of its object, where there are objects


@contextmanager
def storage_full(make_room: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Turn the system's error for a full disk into `StorageFull`, once `make_room` has done what it can."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            make_room()
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


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, survive a power failure."""
    with opened(path) as descriptor:
        os.fsync(descriptor)


class IncomingBlob:
    """A blob being written: in memory up to `MAX_ROW_BYTES`, in a temporary file beyond.

    Use as a context manager that stays open until the transaction that stores the blob has ended; leaving it removes
    a temporary file that no transaction has renamed.
    """

    def __init__(self, files: "Files") -> None:
        """Use `Store.incoming` instead."""
        self._files = files
        self._stream: BinaryIO = BytesIO()
        self._path: Path | None = None
        self._key: str | None = None
        self.size = 0  # bytes so far

    def write(self, chunk: bytes | memoryview) -> int:
        """Append bytes. Blocks on the disk beyond `MAX_ROW_BYTES`.

        Raises:
            StorageFull: There is no room.
        """
        with storage_full(self._files.make_room):
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
        """Store the bytes, but for their name. A given `digest` is trusted; otherwise it is computed.

        Blocks beyond `MAX_ROW_BYTES`.

        Raises:
            StorageFull: There is no room.
            Unavailable: The place of objects cannot be reached.
        """
        if self._path is None:
            assert isinstance(self._stream, BytesIO)
            raw = self._stream.getvalue()
            return PendingBlob(digest or sha256(raw).digest(), self.size, raw=raw)
        with storage_full(self._files.make_room):
            self._stream.flush()
            if self._files.durable:
                os.fsync(self._stream.fileno())
            self._stream.close()
        if digest is None:
            with self._path.open("rb") as file:
                digest = file_digest(file, "sha256").digest()
        self._key = self._files.put(digest, self._path)
        return PendingBlob(digest, self.size, path=self._path, key=self._key)

    def __enter__(self) -> Self:
        """The blob itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Remove the temporary file and the object, unless a transaction has named them."""
        with suppress(OSError):  # a full disk may prevent the flush of bytes that are dropped anyway
            self._stream.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._key is not None:
            self._files.discard(self._key)

    def _spill(self) -> None:
        assert isinstance(self._stream, BytesIO)
        path = self._files.incoming / secrets.token_hex(16)
        file = path.open("xb")
        self._path = path
        start, self._stream = self._stream.getvalue(), file
        file.write(start)


class Files:
    """The files of a folder, and what else `Objects` does with blobs that do not fit a row.

    Attributes:
        keys: Of the objects of stored blobs, by digest; changed by the writing thread alone.
    """

    def __init__(self, folder: Path, durable: bool = True) -> None:
        """In `folder`; files survive a power failure, or without `durable` only the end of this process."""
        self.folder = folder
        self.durable = durable
        self.incoming = folder / "incoming"
        self.incoming.mkdir(parents=True, exist_ok=True)
        self.keys: dict[bytes, str] = {}

    def path(self, digest: bytes) -> Path:
        """The file of a blob."""
        return self.folder / digest.hex()

    def put(self, digest: bytes, path: Path) -> str | None:
        """Store a file's bytes where they outlast this machine, before the transaction that names them.

        Returns:
            The key by which it names them; None: the file itself is that place.
        """
        return None

    def take(self, blob: PendingBlob) -> None:
        """Give a pending blob's file its name, in its transaction.

        Raises:
            FileNotFoundError: It is gone.
            StorageFull: There is no room.
        """
        assert blob.path is not None
        with storage_full(self.make_room):
            blob.path.rename(self.path(blob.digest))

    def sync(self) -> None:
        """Sync names to disk, if files are durable."""
        if self.durable:
            sync(self.folder)

    def bring(self, digest: bytes, size: int) -> Path:
        """The file of a stored blob, brought here if it is elsewhere."""
        return self.path(digest)

    def bring_all(self, sizes: Mapping[bytes, int]) -> None:
        """As `bring`, many at a time."""

    def drop(self, digest: bytes, key: str | None, *, stored_again: bool = False) -> None:
        """Delete the bytes of a blob that no row names; `stored_again`: under another key."""
        if not stored_again:
            self.path(digest).unlink(missing_ok=True)

    def discard(self, key: str) -> None:
        """Delete an object in time, unless a row names it by then."""

    def tidy(self, now: float) -> None:
        """Delete objects that nothing names, at a time in seconds since the epoch; call it now and then."""

    def make_room(self) -> None:
        """Delete files that are kept elsewhere too; for a disk that is full."""

    def sweep(self, sizes: Mapping[bytes, int], *, keeps_unknown: bool) -> None:
        """Delete temporary files, and those of blobs that are not stored, unless they may be another state's.

        Args:
            sizes: Of the stored blobs, in bytes, by digest.
            keeps_unknown: True if the files of other blobs stay.
        """
        for path in self.incoming.iterdir():
            path.unlink()
        if keeps_unknown:
            return
        named = {digest.hex() for digest, size in sizes.items() if size > MAX_ROW_BYTES}
        for path in self.folder.iterdir():
            if path.is_file() and path.name not in named:
                path.unlink()
