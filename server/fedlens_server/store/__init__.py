"""The server's storage: a database and blobs, which one process at a time writes.

It imports `fedlens_proto`, the server's errors, and `planning` in `method_state.py`. Begin with `writing_thread.py`.
"""

import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar, cast

from sqlalchemy import ColumnElement, Executable, Row, Select, bindparam, delete, select

from fedlens_proto.blob import Array
from fedlens_proto.blob import write as write_blob
from fedlens_proto.v1 import blob_pb2
from fedlens_server.errors import StoreUnusable, Unavailable
from fedlens_server.store import schema
from fedlens_server.store.address import StateAddress
from fedlens_server.store.blobs import Blobs, ComputedBlob, Location
from fedlens_server.store.candidate import Candidate
from fedlens_server.store.database import migrate, usable
from fedlens_server.store.dialects import reading
from fedlens_server.store.incoming import MAX_ROW_BYTES, Files, IncomingBlob, PendingBlob
from fedlens_server.store.tensors import RestoredTensors, StoredTensors
from fedlens_server.store.writing_thread import Transaction, WritingThread

__all__ = [
    "MAX_ROW_BYTES",
    "Candidate",
    "ComputedBlob",
    "IncomingBlob",
    "Location",
    "PendingBlob",
    "RestoredTensors",
    "StateAddress",
    "Store",
    "StoredTensors",
    "Transaction",
]

T = TypeVar("T")
_VALUES = 500  # of one query, which databases limit


class Store:
    """Database, blobs, and the one thread that writes them."""

    def __init__(self, candidate: Candidate) -> None:
        """The state of a candidate that leads, which it closes.

        Raises:
            StoreUnusable: The state cannot be read, or its database went away meanwhile.
        """
        self.address = address = candidate.address
        self.folder = address.folder
        self.database = candidate.database
        self.lead = candidate.lead
        self._candidate = candidate
        self._readers = candidate.readers
        with ExitStack() as failed, usable(self.database):
            failed.callback(candidate.close)
            if self.database.is_shared:
                migrate(candidate.writers, self.database)
            self.blobs = Blobs(_files(address, candidate.durable), self._read_row)
            try:
                self._load_blobs(address)
            except Unavailable as error:
                raise StoreUnusable(f"{self.database.place}: {error}") from error
            failed.pop_all()
        self._thread = WritingThread(candidate.writers, self.lead, self.blobs)
        self.lead.on_lost = self._end_writing

    @classmethod
    def open(cls, address: Path | StateAddress, *, durable: bool = True) -> Self:
        """Open a server's state; create it if it is missing, upgrade it if an older version wrote it.

        Args:
            address: Of the state; a path is that of a folder that holds all of it.
            durable: Commits survive a power failure. Otherwise they survive only the end of the process, even by a
                kill, and nothing waits for the disk: for studies, which can be run again.

        Raises:
            StoreUnusable: Another process uses the folder or the database, a newer version of FedLens wrote the state,
                or it cannot be read or written.
        """
        candidate = Candidate.open(address, durable=durable)
        with ExitStack() as failed, usable(candidate.database):
            failed.callback(candidate.close)
            candidate.lead.take()
            failed.pop_all()
        return cls(candidate)

    @property
    def free_bytes(self) -> int:
        """Bytes that are free on the disk of its folder."""
        return shutil.disk_usage(self.folder).free

    @property
    def writing(self) -> WritingThread:
        """The thread that writes, for its figures."""
        return self._thread

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the writing thread after each commit, instead of the previous listener."""
        self._thread.after_commit = listener

    def on_broken(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the writing thread if that has to stop; the store must then be opened anew."""
        self._thread.on_broken = listener

    def submit(self, operation: Callable[[Transaction], T], keys: Iterable[Hashable] | None = None) -> Future[T]:
        """Run an operation on the writing thread.

        Args:
            operation: Reads the view in memory and writes through the transaction.
            keys: The keys of the view that the operation reads or changes; None: all.

        Raises:
            Unavailable: The store is closing.
        """
        return self._thread.submit(operation, None if keys is None else frozenset(keys))

    def read(self, statement: Executable) -> Sequence[Row[Any]]:
        """All rows of a query, as of the last commit. Several threads can read at a time.

        Raises:
            Unavailable: The database cannot be reached.
        """
        (rows,) = self.read_together(statement)
        return rows

    def read_together(self, *statements: Executable) -> list[Sequence[Row[Any]]]:
        """All rows of each query, all as of the same commit.

        Raises:
            Unavailable: The database cannot be reached.
        """
        with reading(), self._readers.connect() as connection:
            return [connection.execute(statement).all() for statement in statements]

    def read_among(self, query: Select[Any], column: ColumnElement[bytes], values: Sequence[bytes]) -> list[Row[Any]]:
        """The rows of a query in which a column has one of many values, in the order of the values' batches."""
        batches = (values[start : start + _VALUES] for start in range(0, len(values), _VALUES))
        return [row for batch in batches for row in self.read(query.where(column.in_(batch)))]

    def stream(self, statement: Executable) -> Iterator[Row[Any]]:
        """The rows of a query, as of the last commit, for those that are too many to hold. Errors as in `read`."""
        with reading(), self._readers.connect() as connection:
            with connection.execution_options(yield_per=1000).execute(statement) as rows:
                yield from rows

    def incoming(self) -> IncomingBlob:
        """A new blob, to be written in pieces."""
        return IncomingBlob(self.blobs.files)

    def write_tensors(
        self,
        tensors: Mapping[str, Array],
        incoming: IncomingBlob,
        floats: blob_pb2.Dtype = blob_pb2.DTYPE_FLOAT32,
        base: bytes | None = None,
    ) -> PendingBlob:
        """Write a blob of float and int64 tensors for a transaction to place.

        Args:
            tensors: By name.
            incoming: Where to write; stays open until the transaction has ended.
            floats: The dtype in which float tensors are stored.
            base: For a difference, the SHA-256 of the blob that it is a difference to.

        Raises:
            BlobError: A tensor holds a NaN or an infinity, or has another type.
            StorageFull: There is no room.
        """
        digest, _ = write_blob(cast(BinaryIO, incoming), tensors, floats=floats, base=base)
        return incoming.finish(digest)

    def tensors(self, digest: bytes) -> StoredTensors:
        """The tensors of a blob that is stored, or placed by a running operation."""
        return StoredTensors(digest, self.blobs.locate(digest).size, self.blobs.locate)

    def delete_blobs(self, transaction: Transaction, digests: Iterable[bytes]) -> None:
        """Delete blobs in a transaction; their bytes are deleted after its commit."""
        for digest in digests:
            transaction.later(_DELETE_BLOB, {"gone": digest})
            transaction.after_commit(partial(self.blobs.forget, digest))

    def database_bytes(self) -> int:
        """The bytes that the database takes. Errors as in `read`."""
        with reading(), self._readers.connect() as connection:
            return self.database.size(connection)

    def tidy(self, now: float) -> None:
        """Delete what nothing names, as `Files.tidy`."""
        if self.lead.is_certain and not self._thread.broken:  # as long as names are known
            self.blobs.files.tidy(now)

    def close(self) -> None:
        """Finish all submitted operations, then close the database."""
        self._thread.close()
        self._candidate.close()

    def _end_writing(self) -> None:
        with suppress(Unavailable):  # it has ended
            self._thread.submit(lambda _: None)

    def _load_blobs(self, address: StateAddress) -> None:
        found = schema.blobs.c
        for row in self.read(select(found.digest, found.size, found.object, found.kept_until)):
            if row.size > MAX_ROW_BYTES and (row.object is None) != (address.bucket is None):
                held, set_to = ("objects", "unset") if address.bucket is None else ("files", f"{address.bucket}")
                raise StoreUnusable(
                    f"{self.database.place} names blobs that are {held}, and server.blobs is {set_to}; correct the "
                    "config, or move the state with `fedlens store migrate`"
                )
            is_file = row.size > MAX_ROW_BYTES and row.object is None
            if is_file and not self.blobs.files.path(row.digest).is_file():
                raise StoreUnusable(
                    f"{self.database.place} names blob {row.digest.hex()}, which is not in {self.folder / 'blobs'}; "
                    "bring that folder here, or restore a backup"
                )
            self.blobs.sizes[row.digest] = row.size
            if row.object is not None:
                self.blobs.files.keys[row.digest] = row.object
            if row.kept_until is not None:
                self.blobs.kept_until[row.digest] = row.kept_until
        self.blobs.files.sweep(self.blobs.sizes, keeps_unknown=address.is_beside_another)

    def _read_row(self, digest: bytes) -> bytes | None:
        rows = self.read(select(schema.blobs.c.raw).where(schema.blobs.c.digest == digest))
        return rows[0].raw if rows else None


def _files(address: StateAddress, durable: bool) -> Files:
    folder = address.folder / "blobs"
    if address.bucket is None:
        return Files(folder, durable)
    from fedlens_server.store.objects import Objects, ObjectStore  # which take some time to import

    objects = ObjectStore(address.bucket)
    objects.check()
    return Objects(folder, objects, address.cache_bytes, durable)


_DELETE_BLOB = delete(schema.blobs).where(schema.blobs.c.digest == bindparam("gone"))
