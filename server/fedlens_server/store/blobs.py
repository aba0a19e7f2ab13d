"""Bytes by their SHA-256: small ones in the database's row, larger ones as files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

MAX_ROW_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """Bytes that are on disk (or small enough for a row) and wait for the transaction that names them."""

    digest: bytes
    size: int
    raw: bytes | None = None  # the bytes themselves, when they fit a row
    path: Path | None = None  # else the synced temporary file


@dataclass(frozen=True, slots=True)
class Location:
    """Where stored bytes can be read: exactly one of `raw` and `path` is set."""

    size: int
    raw: bytes | None = None
    path: Path | None = None


class IncomingBlob:
    """Bytes on their way in: in memory up to `MAX_ROW_BYTES`, in a temporary file beyond.

    Use as a context manager that stays open until the call that stores the blob has been answered;
    on leaving, a temporary file that no transaction has taken over is removed.
    """

    def write(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes. Blocks on the disk once more than `MAX_ROW_BYTES` have come.

        Raises:
            StorageFull: There is no room.
        """
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Bytes so far."""
        raise NotImplementedError

    @property
    def in_memory(self) -> bool:
        """Whether the next `write` of at most `MAX_ROW_BYTES - size` bytes touches no disk."""
        raise NotImplementedError

    def finish(self, digest: bytes | None = None) -> StoredBlob:
        """Sync what was written; `digest` is trusted where given, else computed. Blocks on the disk for a file."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Itself."""
        raise NotImplementedError

    def __exit__(self, *exc: object) -> None:
        """Drop a temporary file that nobody took over."""
        raise NotImplementedError
