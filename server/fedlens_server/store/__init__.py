"""What the server keeps: a SQLite database and a folder of blobs, opened by one process at a time."""

from pathlib import Path
from typing import Self

from fedlens_server.store.blobs import MAX_ROW_BYTES, IncomingBlob, Location, StoredBlob

__all__ = ["MAX_ROW_BYTES", "IncomingBlob", "Location", "Store", "StoredBlob"]


class Store:
    """Database, blobs and the one thread that writes."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the state in `folder`, making it where it is missing and bringing an older one up to date.

        Raises:
            StoreError: Another process has it open, or a newer version of FedLens wrote it.
        """
        raise NotImplementedError

    def incoming(self) -> IncomingBlob:
        """A place for bytes that arrive in pieces."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish what was submitted, then release everything."""
        raise NotImplementedError
