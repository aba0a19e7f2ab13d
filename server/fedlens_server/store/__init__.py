"""What the server keeps: a SQLite database and a folder of blobs, opened by one process at a time."""

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar, cast

from sqlalchemy import Executable, Row, bindparam, delete, select

from fedlens_proto.blob import Array
from fedlens_proto.blob import write as write_blob
from fedlens_proto.v1 import blob_pb2
from fedlens_server.errors import StoreUnusable
from fedlens_server.store import schema
from fedlens_server.store.blobs import MAX_ROW_BYTES, Blobs, ComputedBlob, IncomingBlob, Location, StoredBlob
from fedlens_server.store.database import connect, lock, migrate
from fedlens_server.store.tensors import RestoredTensors, StoredTensors
from fedlens_server.store.worker import Transaction, Worker

__all__ = [
    "MAX_ROW_BYTES",
    "ComputedBlob",
    "IncomingBlob",
    "Location",
    "RestoredTensors",
    "Store",
    "StoredBlob",
    "StoredTensors",
    "Transaction",
]

T = TypeVar("T")


class Store:
    """Database, blobs and the one thread that writes."""

    def __init__(self, folder: Path, lock_descriptor: int, durable: bool = True) -> None:
        """Use `open`."""
        self.folder = folder
        self._lock_descriptor = lock_descriptor
        self._durable = durable
        self._readers = connect(folder, begin="BEGIN", durable=durable)
        self._writers = connect(folder, begin="BEGIN IMMEDIATE", durable=durable)
        try:
            migrate(self._writers, folder)
            self.blobs = Blobs(folder / "blobs", self._read_row, durable)
            for row in self.read(select(schema.blobs.c.digest, schema.blobs.c.size, schema.blobs.c.kept_until)):
                self.blobs.sizes[row.digest] = row.size
                if row.kept_until is not None:
                    self.blobs.kept_until[row.digest] = row.kept_until
            self.blobs.sweep_files()
        except BaseException:
            self._release()
            raise
        self._group_listener: Callable[[], None] = _nobody
        self._broken_listener: Callable[[], None] = _nobody
        self._worker = Worker(
            self._writers, self.blobs, lambda: self._group_listener(), lambda: self._broken_listener()
        )

    @classmethod
    def open(cls, folder: Path, *, durable: bool = True) -> Self:
        """Open the state in `folder`, making it where it is missing and bringing an older one up to date.

        Args:
            folder: Of the state.
            durable: What is committed outlives a power failure. Otherwise it outlives only the end of the process,
                however that ends, and nothing waits for the disk: for studies, which can be run again.

        Raises:
            StoreUnusable: Another process has it open, a newer version of FedLens wrote it, or it cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return cls(folder, lock(folder), durable)
        except OSError as error:
            raise StoreUnusable(f"{error.filename or folder} cannot be written: {error.strerror}") from error

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Have `listener` called on the writing thread after each commit; it replaces the one before."""
        self._group_listener = listener

    def on_broken(self, listener: Callable[[], None]) -> None:
        """Have `listener` called on the writing thread if that cannot go on: only opening anew helps then."""
        self._broken_listener = listener

    def submit(self, operation: Callable[[Transaction], T], keys: Iterable[Hashable] | None = None) -> Future[T]:
        """Run an operation on the writing thread; see `worker`.

        Raises:
            Unavailable: The store is closing.
        """
        return self._worker.submit(operation, None if keys is None else frozenset(keys))

    def read(self, statement: Executable) -> Sequence[Row[Any]]:
        """All rows of a query, as of the last commit; several threads read at a time."""
        with self._readers.connect() as connection:
            return connection.execute(statement).all()

    def incoming(self) -> IncomingBlob:
        """A place for bytes that arrive in pieces."""
        return IncomingBlob(self.blobs.incoming_folder, self._durable)

    def write_tensors(
        self,
        tensors: Mapping[str, Array],
        incoming: IncomingBlob,
        floats: blob_pb2.Dtype = blob_pb2.DTYPE_FLOAT32,
        base: bytes | None = None,
    ) -> StoredBlob:
        """Write a blob of float and int64 tensors for a transaction to place.

        Args:
            tensors: By name.
            incoming: Must outlive the transaction.
            floats: How float tensors are stored.
            base: SHA-256 of the blob from which these are the difference; None: they are no difference.

        Raises:
            BlobError: A tensor holds a NaN or an infinity, or has another type.
            StorageFull: There is no room.
        """
        digest, _ = write_blob(cast(BinaryIO, incoming), tensors, floats=floats, base=base)
        return incoming.finish(digest)

    def tensors(self, digest: bytes) -> StoredTensors:
        """The tensors of a stored blob, or of one that a running operation has placed."""
        return StoredTensors(digest, self.blobs.locate(digest).size, self.blobs.locate)

    def delete_blobs(self, transaction: Transaction, digests: Iterable[bytes]) -> None:
        """Drop blobs in a transaction; their bytes go after its commit."""
        for digest in digests:
            transaction.later(_DELETE_BLOB, {"gone": digest})
            transaction.after_commit(partial(self.blobs.forget, digest))

    def close(self) -> None:
        """Finish what was submitted, then release everything."""
        self._worker.close()
        self._release()

    def _release(self) -> None:
        self._readers.dispose()
        self._writers.dispose()
        os.close(self._lock_descriptor)

    def _read_row(self, digest: bytes) -> bytes | None:
        rows = self.read(select(schema.blobs.c.raw).where(schema.blobs.c.digest == digest))
        return rows[0].raw if rows else None


def _nobody() -> None: ...


_DELETE_BLOB = delete(schema.blobs).where(schema.blobs.c.digest == bindparam("gone"))
