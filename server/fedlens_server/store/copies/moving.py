"""Moves of a state that no server uses: every row and every blob, compared by digest.

Blobs come first, and what is there of them already is not written again. The schema and all rows come in one
transaction, so a database holds a whole state or none, and a move that was stopped is begun again.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Table, insert, select

from fedlens_server.errors import StoreUnusable, Unavailable
from fedlens_server.store import schema
from fedlens_server.store.address import StateAddress
from fedlens_server.store.database import holds_state, lock, migrate, migrate_within, usable
from fedlens_server.store.dialects import Database, Sqlite, reading
from fedlens_server.store.incoming import MAX_ROW_BYTES, Files
from fedlens_server.store.lead import Lead
from fedlens_server.store.objects import ObjectStore, new_key

_BATCH = 500
_blob = schema.blobs.c
_LARGE = select(_blob.digest, _blob.object).where(_blob.size > MAX_ROW_BYTES).order_by(_blob.digest)


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The cost of a move."""

    rows: int
    blobs: int  # that do not fit a row
    copied: int  # of these, the ones that were not there yet


def move(source: StateAddress, target: StateAddress) -> Moved:
    """Copy a state to where there is none. The source stays as it is.

    Raises:
        StoreUnusable: There is no source, the target holds another state, a server uses one of both, a blob is damaged,
            or one of both cannot be reached.
    """
    old, new = source.open_database(), target.open_database()
    if not holds_state(source):
        raise StoreUnusable(f"{old.place} holds no server's state; nothing was moved")
    if old.place == new.place:
        raise StoreUnusable(f"{old.place} is the source and the target; name another database for one of them")
    try:
        with ExitStack() as held, usable(new):
            for folder in {source.folder, target.folder}:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                held.enter_context(_locked(folder))
            return _move(source, target, old, new)
    except OSError as error:
        raise StoreUnusable(f"{error.filename or target.folder}: {error.strerror}") from error
    except Unavailable as error:
        raise StoreUnusable(str(error)) from error


def _move(source: StateAddress, target: StateAddress, old: Database, new: Database) -> Moved:
    with ExitStack() as held:
        readers, fence, writers = old.engine(), old.engine(writes=True), new.engine(writes=True)
        for engine in (readers, fence, writers):
            held.callback(engine.dispose)
        used = [(old, fence)]
        if holds_state(target):  # an empty one, or it is refused below; otherwise nobody can use it before our commit
            used.append((new, writers))
        for database, engine in used:
            migrate(engine, database)
            with usable(database):
                held.enter_context(Lead(database, engine))  # nobody else has it open
        with usable(old):
            read = held.enter_context(readers.connect())
        with writers.begin() as written:
            migrate_within(written, new)
            for table in schema.metadata.sorted_tables:
                if table is not schema.lead and written.execute(select(table).limit(1)).first() is not None:
                    raise StoreUnusable(f"{new.place} holds another server's state ({table.name}); name an empty one")
            with usable(old):
                large = read.execute(_LARGE).all()
            keys, copied = _move_blobs(large, source, target)
            rows = copy_rows(read, old, written, new, keys)
            return Moved(rows=rows, blobs=len(keys), copied=copied)


def copy_rows(
    read: Connection, old: Database, write: Connection, new: Database, keys: Mapping[bytes, str | None]
) -> int:
    """Copy all rows into tables that are empty, as of one commit, and compare them; returns their number.

    Args:
        read: A transaction on the source.
        old: The source.
        write: A transaction on the target.
        new: The target.
        keys: Of the objects of blobs in the target, by digest; None: a file.

    Raises:
        StoreUnusable: What was written is not what was read, or one of both databases is lost meanwhile.
    """
    count = 0
    for table in schema.metadata.sorted_tables:
        if table is schema.lead:
            continue
        seen = sha256()
        with closing(_batches(read, old, table)) as batches:  # also where a batch cannot be written
            for batch in batches:
                if table is schema.blobs:
                    batch = [{**row, "object": keys.get(row["digest"])} for row in batch]
                for row in batch:
                    seen.update(_bytes(row))
                count += len(batch)
                write.execute(insert(table), batch)
        written = sha256()
        for batch in _batches(write, new, table):
            for row in batch:
                written.update(_bytes(row))
        if written.digest() != seen.digest():
            raise StoreUnusable(f"{new.place}: table {table.name} is not as in {old.place}; nothing was moved")
        if table.autoincrement_column is not None:
            with usable(old):
                last = old.counter(read, table)
            new.set_counter(write, table, last)
    return count


def _batches(connection: Connection, database: Database, table: Table) -> Generator[list[dict[str, Any]], None, None]:
    query = select(table).order_by(*table.primary_key.columns)
    with usable(database), connection.execute(query, execution_options={"yield_per": _BATCH}) as rows:
        for batch in rows.mappings().partitions():
            yield [dict(row) for row in batch]


def _bytes(row: Mapping[str, Any]) -> bytes:
    # PostgreSQL has no NUL in a text, as `dialects.Textual` writes it.
    return repr(sorted(row.items())).replace("\\x00", "\N{REPLACEMENT CHARACTER}").encode()


def _move_blobs(
    large: Sequence[Row[Any, Any]], source: StateAddress, target: StateAddress
) -> tuple[dict[bytes, str | None], int]:
    """Copy the blobs that do not fit a row; their keys in the target by digest, and the number of copies."""
    files = Files(target.folder / "blobs")
    if target.bucket is not None and source.bucket == target.bucket:
        return {row.digest: row.object for row in large}, 0
    read_blob = reader(source)
    bucket = None if target.bucket is None else ObjectStore(target.bucket)
    if bucket is not None:
        bucket.check()
    # Of a move that was stopped.
    there = {key.partition("/")[0]: key for key, *_ in bucket.list()} if bucket is not None else {}
    keys: dict[bytes, str | None] = {}
    copied = 0
    for row in large:
        path, fresh = files.path(row.digest), files.incoming / row.digest.hex()
        if bucket is None:
            keys[row.digest] = None
            if not path.is_file() or digest_of(pieces_of(path)) != row.digest.hex():
                copied += 1
                _copy(read_blob, row.digest, row.object, fresh)
                fresh.rename(path)  # which is the source's own file if both have one folder
            continue
        key = there.get(row.digest.hex())
        if key is None or digest_of(bucket.read(key)) != row.digest.hex():
            key = new_key(row.digest)
            copied += 1
            _copy(read_blob, row.digest, row.object, fresh)
            bucket.put(key, fresh)
            fresh.unlink()
            if digest_of(bucket.read(key)) != row.digest.hex():
                raise StoreUnusable(f"{target.bucket}: object {key} is not what was written; nothing was moved")
        keys[row.digest] = key
    files.sync()
    return keys, copied


def snapshot(source: Database, target: Path) -> None:
    """Copy a database that others write, as of one commit, into a new SQLite file, with the keys of objects.

    Raises:
        Unavailable: The database cannot be reached.
    """
    file = Sqlite(target.parent, target.name)
    readers, writers = source.engine(), file.engine(writes=True, durable=False)
    try:
        migrate(writers, file)
        with reading(), readers.connect() as old, writers.begin() as new:
            keys = {row.digest: row.object for row in old.execute(select(schema.blobs.c.digest, schema.blobs.c.object))}
            copy_rows(old, source, new, file, keys)
    finally:
        readers.dispose()
        writers.dispose()


Reader = Callable[[bytes, str | None], Iterator[bytes]]
"""The bytes of a blob that does not fit a row, piece by piece, by its digest and the key of its object."""


def reader(source: StateAddress) -> Reader:
    """What reads the blobs of a state, over one connection if they are objects."""
    objects = None if source.bucket is None else ObjectStore(source.bucket)

    def read(digest: bytes, key: str | None) -> Iterator[bytes]:
        if key is None or objects is None:
            return pieces_of(source.folder / "blobs" / digest.hex())
        return objects.read(key)

    return read


def pieces_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file, piece by piece."""
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def copied_into(path: Path, pieces: Iterable[bytes]) -> str:
    """Write a file, which is whole as soon as it has its name; returns its SHA-256 in hexadecimal."""
    seen = sha256()
    fresh = path.with_name(f".{path.name}")
    with fresh.open("wb") as file:
        for piece in pieces:
            seen.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    return seen.hexdigest()


def digest_of(pieces: Iterable[bytes]) -> str:
    """The SHA-256 of bytes that come piece by piece, in hexadecimal."""
    seen = sha256()
    for piece in pieces:
        seen.update(piece)
    return seen.hexdigest()


def _copy(read: Reader, digest: bytes, key: str | None, target: Path) -> None:
    if copied_into(target, read(digest, key)) != digest.hex():
        target.unlink()
        raise StoreUnusable(f"blob {digest.hex()} is damaged; nothing was moved. Restore a backup")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)
