"""Backups of a state: snapshots of its database, and the blobs that they name, once for all snapshots.

    blobs/<sha256>          large blobs
    <time>/server.sqlite3   a snapshot of the database, whatever kind of database it is
    <time>/blobs.txt        the blobs that it names
    <time>/backup.json      its time and digest
    .backup-<anything>      in a folder, while a backup is made

A backup is whole once it has its `backup.json`, which comes last and goes first. A backup deletes what one that was
stopped has left, but no blobs and lists that are younger than a day, for they may be of one that another server makes;
and nothing but files of these names.
"""

import json
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from sqlalchemy.exc import DBAPIError

from fedlens_server.errors import StoreUnusable, Unavailable
from fedlens_server.store.address import Bucket, StateAddress
from fedlens_server.store.copies.folders import Folder
from fedlens_server.store.copies.moving import copied_into, digest_of, pieces_of, reader, snapshot
from fedlens_server.store.dialects import DATABASE_FILE, Sqlite, full
from fedlens_server.store.incoming import MAX_ROW_BYTES, sync

BLOBS = "blobs"
ABOUT = "backup.json"
LISTED = "blobs.txt"
RETRY_MS = 30_000
GRACE_S = 24 * 3600.0
_SCRATCH = ".backup-"
# With a dot before it: of a file in a folder, on which a kill came.
_OWN = re.compile(rf"(\d{{4}}-\d\d-\d\dT[\d.-]+Z)/\.?({ABOUT}|{LISTED}|{DATABASE_FILE})|{BLOBS}/[0-9a-f]{{64}}")
Place = Path | Bucket
"""Of all backups."""


class Files(Protocol):
    """The files of a place, by keys with a slash between their parts."""

    def put(self, key: str, source: Path | bytes) -> None:
        """Write a file, which nobody sees before it is whole; one that is given may be moved there."""

    def read(self, key: str) -> Iterator[bytes]:
        """The bytes of a file, piece by piece."""
        ...

    def list(self) -> Iterator[tuple[str, float, int]]:
        """All keys, each with the time of its writing and its bytes."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, if they are there."""


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A whole backup."""

    taken_at: float  # seconds since the epoch; what was acknowledged before is in it
    database_sha256: str


class Named(NamedTuple):
    """A blob that a snapshot names and does not hold."""

    key: str | None  # of its object in the state; None: it is a file
    size: int  # bytes


@dataclass(frozen=True, kw_only=True)
class Copied:
    """The cost of a backup."""

    name: str
    blobs: int  # files that it names
    copied: int  # of these, the ones that no earlier backup had whole
    copied_bytes: int  # with the database
    removed: int  # older backups


def make(
    address: StateAddress,
    place: Place,
    taken_at: float,
    keep: int = 0,
    on_whole: Callable[[str], None] = lambda name: None,
) -> Copied:
    """Back up a state while it is used. Blocks on the disk and the network.

    Args:
        address: Of the state, from which no bytes of a blob may be deleted meanwhile.
        place: Of all backups.
        taken_at: A time before this call, in seconds since the epoch.
        keep: The number of latest backups that stay, with this one; 0: all.
        on_whole: Called with the backup's name once it is whole, before older ones are removed.

    Raises:
        OSError: A folder cannot be read or written; the backups that there were are whole, or removed.
        StorageFull: There is no room for the snapshot; likewise.
        Unavailable: A bucket or the database cannot be reached, read or written, a blob of the state is damaged, or
            another server has deleted one from the place; likewise.
    """
    name = datetime.fromtimestamp(taken_at, UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
    files = _files(place)
    # Not beside the state, if there is another disk: that may be nearly full, and its server needs the rest.
    near = place if isinstance(place, Path) else address.folder
    near.mkdir(parents=True, exist_ok=True, mode=0o700)
    for left in near.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=near, prefix=_SCRATCH) as scratch:
        database = Path(scratch) / DATABASE_FILE
        digest, blobs = _snapshot(address, database)
        copied_bytes = database.stat().st_size
        missing = _missing(files, blobs)
        read = reader(address)
        for blob in missing:
            copy = Path(scratch) / blob
            if copied_into(copy, read(bytes.fromhex(blob), blobs[blob].key)) != blob:
                told = f"no backup was made: blob {blob}, as it is stored, is damaged; restore a backup"
                raise Unavailable(told, RETRY_MS)
            copied_bytes += copy.stat().st_size
            files.put(f"{BLOBS}/{blob}", copy)
            copy.unlink(missing_ok=True)
        files.put(f"{name}/{LISTED}", "\n".join(sorted(blobs)).encode())
        files.put(f"{name}/{DATABASE_FILE}", database)
    if gone := _missing(files, blobs):
        told = f"no backup was made: blob {gone[0]} has gone from {place}; no server of another state may back up there"
        raise Unavailable(told, RETRY_MS)
    files.put(f"{name}/{ABOUT}", json.dumps(asdict(Backup(taken_at=taken_at, database_sha256=digest))).encode())
    on_whole(name)
    removed = _prune(files, keep, name)
    return Copied(name=name, blobs=len(blobs), copied=len(missing), copied_bytes=copied_bytes, removed=removed)


def obstacle(place: Place) -> str:
    """Why no backup can be made into a folder, as far as that shows without writing; empty: nothing does."""
    if not isinstance(place, Path):
        return ""
    there = next(each for each in (place, *place.parents) if os.access(each, os.F_OK, effective_ids=True))
    if there.is_dir() and os.access(there, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        return ""
    return f"{there} is no folder that user {os.geteuid()}, as which the server runs, can write"


def check(backup: Place) -> Backup:
    """Read a backup and all blobs that it names, and compare their digests.

    Raises:
        StoreUnusable: It is no whole backup, or a file is missing or damaged.
    """
    kept = _Kept(backup)
    about = kept.about()
    with tempfile.TemporaryDirectory() as scratch:
        database = Path(scratch) / DATABASE_FILE
        kept.write_database(about, database)
        for blob in sorted(_named(database)):
            if digest_of(kept.pieces(f"{BLOBS}/{blob}")) != blob:
                raise kept.damaged(f"{BLOBS}/{blob}")
    return about


def restore(backup: Place, data: Path) -> Backup:
    """Write the state of a backup into a new folder, comparing the digests of all files.

    The database comes last, so that no server takes up half a state.

    Raises:
        StoreUnusable: As `check`; or `data` is not empty or cannot be written. Nothing is left in `data`.
    """
    kept = _Kept(backup)
    about = kept.about()
    database = data / f"{DATABASE_FILE}.incoming"
    try:
        if data.exists() and any(data.iterdir()):
            raise StoreUnusable(f"{data} is not empty; name a new folder, or move what is in it away")
        with ExitStack() as failed:
            (data / BLOBS).mkdir(parents=True, exist_ok=True, mode=0o700)
            failed.callback(shutil.rmtree, data / BLOBS, ignore_errors=True)
            for written in (database, data / DATABASE_FILE):
                failed.callback(written.unlink, missing_ok=True)
            data.chmod(0o700)
            kept.write_database(about, database)
            for blob in sorted(_named(database)):
                if copied_into(data / BLOBS / blob, kept.pieces(f"{BLOBS}/{blob}")) != blob:
                    raise kept.damaged(f"{BLOBS}/{blob}")
            sync(data / BLOBS)
            database.rename(data / DATABASE_FILE)
            sync(data)
            failed.pop_all()
    except OSError as error:
        raise StoreUnusable(f"{error.filename or data}: {error.strerror}") from error
    return about


def place_of(text: str) -> Place:
    """The folder or the bucket that a text names.

    Raises:
        ValueError: It names a bucket that cannot be one.
    """
    return Bucket.parse(text) if text.startswith("s3://") else Path(text).absolute()


class _Kept:
    """A backup, to be read."""

    def __init__(self, backup: Place) -> None:
        self._backup = backup
        if isinstance(backup, Path):
            self._place: Place = backup.parent
            self._name = backup.name
        else:
            prefix, _, self._name = backup.prefix.rpartition("/")
            self._place = Bucket(backup.name, prefix)
        self._files = _files(self._place)

    def about(self) -> Backup:
        try:
            return Backup(**json.loads(b"".join(self.pieces(f"{self._name}/{ABOUT}"))))
        except (StoreUnusable, ValueError, TypeError) as error:
            advice = "name one that `fedlens backup` has written, such as 2026-01-31T04-00-00.000000Z"
            cause = error.__cause__
            if not isinstance(cause, FileNotFoundError | NotADirectoryError) and "NoSuchKey" not in str(cause):
                raise StoreUnusable(f"{self._backup} is no whole backup ({error}); {advice}") from error
            is_named_so = _OWN.fullmatch(f"{self._name}/{ABOUT}") is not None
            place, where = (self._place, "beside it") if is_named_so else (self._backup, "in it")
            if found := _whole(key for key, *_ in _files(place).list()):
                advice = f"name one of the {len(found)} {where}: {'..., ' * (len(found) > 9)}{', '.join(found[-9:])}"
            raise StoreUnusable(f"there is no whole backup at {self._backup}; {advice}") from error

    def write_database(self, about: Backup, target: Path) -> None:
        key = f"{self._name}/{DATABASE_FILE}"
        if copied_into(target, self.pieces(key)) != about.database_sha256:
            raise self.damaged(key)

    def pieces(self, key: str) -> Iterator[bytes]:
        try:
            yield from self._files.read(key)
        except (OSError, Unavailable) as error:
            told = str(error.strerror if isinstance(error, OSError) else error)
            if isinstance(error, OSError) or "NoSuchKey" in told:  # not: the place is away
                told = f"{told}; {_advice(key)}"
            raise StoreUnusable(f"{self._place / key} cannot be read: {told}") from error

    def damaged(self, key: str) -> StoreUnusable:
        return StoreUnusable(f"{self._place / key} is damaged; {_advice(key)}")


def _advice(key: str) -> str:
    if not key.startswith(f"{BLOBS}/"):
        return "take an earlier backup"
    return (
        "no backup that names this blob can be restored. If its server still runs, delete the file, unless it is "
        "missing, and run `fedlens backup` again"
    )


def _files(place: Place) -> Files:
    if isinstance(place, Path):
        return Folder(place)
    from fedlens_server.store.objects import ObjectStore

    return ObjectStore(place)


def _snapshot(address: StateAddress, target: Path) -> tuple[str, dict[str, Named]]:
    """Copy a database that others write, as of one commit, into a SQLite file.

    Returns:
        The file's SHA-256, and the large blobs by theirs, in hexadecimal. The snapshot itself knows no keys of objects.
    """
    source = address.open_database()
    with _told():
        if isinstance(source, Sqlite):
            with (
                closing(sqlite3.connect(f"file:{source.path}?mode=ro", uri=True)) as read,
                closing(sqlite3.connect(target)) as to,
            ):
                read.backup(to)  # all pages in one step: in one transaction, which writers do not wait for
        else:
            snapshot(source, target)
        with closing(sqlite3.connect(target)) as to:
            # A file by itself, which can be read from a folder that cannot be written.
            to.execute("PRAGMA journal_mode = DELETE")
            rows = to.execute("SELECT digest, object, size FROM blobs WHERE size > ?", [MAX_ROW_BYTES]).fetchall()
            to.execute("UPDATE blobs SET object = NULL WHERE object IS NOT NULL")
            to.commit()
    sync(target)
    return digest_of(pieces_of(target)), {digest.hex(): Named(key, size) for digest, key, size in rows}


@contextmanager
def _told() -> Iterator[None]:
    """Turn errors of a snapshot's databases into those that operators are told."""
    try:
        yield
    except (sqlite3.Error, DBAPIError, StoreUnusable) as error:
        cause = error.__cause__ if isinstance(error, StoreUnusable) else error  # of a database that is being made
        cause = cause.orig if isinstance(cause, DBAPIError) else cause
        if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise full() from error
        told = str(cause or error).partition("\n")[0]
        raise Unavailable(f"no backup was made: {told}", RETRY_MS) from error


def _named(database: Path) -> set[str]:
    """The names of the blobs' files that a snapshot names."""
    with closing(sqlite3.connect(f"file:{database}?immutable=1", uri=True)) as read:
        rows = read.execute("SELECT digest FROM blobs WHERE size > ?", [MAX_ROW_BYTES])
        return {digest.hex() for (digest,) in rows}


def _missing(files: Files, blobs: Mapping[str, Named]) -> list[str]:
    """Those of the blobs that a place does not have, or not with all of their bytes."""
    sizes = {key.removeprefix(f"{BLOBS}/"): size for key, _, size in files.list()}
    return sorted(blob for blob, named in blobs.items() if sizes.get(blob) != named.size)


def _whole(keys: Iterable[str]) -> list[str]:
    """The names of the whole backups among the files of a place, the latest last."""
    return sorted(found[1] for key in keys if key.endswith(f"/{ABOUT}") and (found := _OWN.fullmatch(key)))


def _prune(files: Files, keep: int, made: str) -> int:
    """Remove all but this backup and the latest others, what stopped ones left, and blobs that none names any more."""
    own = {key: written_at for key, written_at, _ in files.list() if _OWN.fullmatch(key)}
    # A clock that was ahead may have named others for later times.
    whole = sorted(_whole(own), key=lambda name: name == made)
    stay = whole[-keep:]
    named = {f"{BLOBS}/{blob}" for name in stay for blob in b"".join(files.read(f"{name}/{LISTED}")).decode().split()}
    # By the place's own clock. Another server may be about to complete a backup of what is younger.
    old = own.get(f"{made}/{ABOUT}", 0.0) - GRACE_S
    left = {
        key
        for key, written_at in own.items()
        if (folder := key.partition("/")[0]) not in stay and key not in named and (folder in whole or written_at < old)
    }
    abouts = {key for key in left if key.endswith(f"/{ABOUT}")}
    files.delete(abouts)
    files.delete(left - abouts)
    return len(whole) - len(stay)
