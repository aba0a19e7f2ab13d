"""Backups of a state: snapshots of its database, and the blobs that they name, once for all snapshots.

    blobs/<sha256>          as in the state
    <time>/server.sqlite3   a snapshot of the database
    <time>/backup.json      its time and digest
    .<anything>             of a backup that has not ended, or that is being removed; the next backup deletes it

A backup has its name only when all of its files are on disk.
"""

import json
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import file_digest, sha256
from pathlib import Path

from fedlens_server.errors import StoreUnusable
from fedlens_server.store.dialects import DATABASE_FILE
from fedlens_server.store.incoming import MAX_ROW_BYTES, opened

BLOBS = "blobs"
ABOUT = "backup.json"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A whole backup."""

    taken_at: float  # seconds since the epoch; what was acknowledged before is in it
    database_sha256: str


@dataclass(frozen=True, kw_only=True)
class Copied:
    """The cost of a backup."""

    name: str
    blobs: int  # files that it names
    copied: int  # of these, the ones that no earlier backup had
    copied_bytes: int  # with the database
    removed: int  # older backups


def make(data: Path, folder: Path, taken_at: float, keep: int = 0) -> Copied:
    """Back up a state while it is used. Blocks on the disk.

    Args:
        data: The folder of the state, from which no file of a blob may be deleted meanwhile.
        folder: The folder of all backups.
        taken_at: A time before this call, in seconds since the epoch.
        keep: The number of latest backups that stay, with this one; 0: all.

    Raises:
        OSError: A folder cannot be read or written; the backups that there were are whole.
    """
    blobs = folder / BLOBS
    blobs.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(folder)
    name = datetime.fromtimestamp(taken_at, UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
    fresh = folder / f".{name}"
    fresh.mkdir(mode=0o700)
    digest = _snapshot(data / DATABASE_FILE, fresh / DATABASE_FILE)
    copied_bytes = (fresh / DATABASE_FILE).stat().st_size
    named = _named(fresh / DATABASE_FILE)
    missing = sorted(named - {path.name for path in blobs.iterdir()})
    for blob in missing:
        copied_bytes += (data / BLOBS / blob).stat().st_size
        if _copy(data / BLOBS / blob, blobs / blob) != blob:
            (blobs / blob).unlink()
            raise OSError(0, "the bytes on the disk are not those that were stored", str(data / BLOBS / blob))
    _sync(blobs)
    about = Backup(taken_at=taken_at, database_sha256=digest)
    with (fresh / ABOUT).open("x", encoding="utf-8") as file:
        json.dump(asdict(about), file)
        file.flush()
        os.fsync(file.fileno())
    _sync(fresh)
    fresh.rename(folder / name)
    _sync(folder)
    return Copied(
        name=name,
        blobs=len(named),
        copied=len(missing),
        copied_bytes=copied_bytes,
        removed=_prune(folder, keep) if keep else 0,
    )


def check(backup: Path) -> Backup:
    """Read a backup and all blobs that it names, and compare their digests.

    Raises:
        StoreUnusable: It is no whole backup, or a file is missing or damaged.
    """
    about = _about(backup)
    if _digest(backup / DATABASE_FILE) != about.database_sha256:
        raise StoreUnusable(f"{backup / DATABASE_FILE} is damaged; take another backup")
    for name in sorted(_named(backup / DATABASE_FILE)):
        if _digest(backup.parent / BLOBS / name) != name:
            raise StoreUnusable(f"{backup.parent / BLOBS / name} is damaged; take an earlier backup")
    return about


def restore(backup: Path, data: Path) -> Backup:
    """Write the state of a backup into a new folder, comparing the digests of all files.

    The database comes last, so that no server takes up half a state.

    Raises:
        StoreUnusable: As `check`; or `data` is not empty or cannot be written.
    """
    about = _about(backup)
    database = data / f"{DATABASE_FILE}.incoming"
    try:
        if data.exists() and any(data.iterdir()):
            raise StoreUnusable(f"{data} is not empty; name a new folder, or move what is in it away")
        (data / BLOBS).mkdir(parents=True, exist_ok=True, mode=0o700)
        data.chmod(0o700)
        if _copy(backup / DATABASE_FILE, database) != about.database_sha256:
            raise StoreUnusable(f"{backup / DATABASE_FILE} is damaged; take another backup, and remove {data}")
        for name in sorted(_named(database)):
            if _copy(backup.parent / BLOBS / name, data / BLOBS / name) != name:
                raise StoreUnusable(
                    f"{backup.parent / BLOBS / name} is damaged; take an earlier backup, and remove {data}"
                )
        _sync(data / BLOBS)
        database.rename(data / DATABASE_FILE)
        _sync(data)
    except OSError as error:
        raise StoreUnusable(f"{error.filename or data}: {error.strerror}") from error
    return about


def _about(backup: Path) -> Backup:
    try:
        if backup.name.startswith("."):
            raise ValueError("it has not been finished")
        return Backup(**json.loads((backup / ABOUT).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise StoreUnusable(
            f"{backup} is no whole backup ({error}); name a folder that `fedlens backup` has written, such as "
            "2026-01-31T04-00-00.000000Z"
        ) from error


def _snapshot(source: Path, target: Path) -> str:
    """Copy a database that others write, as of one commit; returns the copy's SHA-256 in hexadecimal."""
    with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as read, closing(sqlite3.connect(target)) as to:
        read.backup(to)  # all pages in one step: in one transaction, which writers do not wait for
        # A file by itself, which can be read from a folder that cannot be written.
        to.execute("PRAGMA journal_mode = DELETE")
    with opened(target) as descriptor:
        os.fsync(descriptor)
    return _digest(target)


def _named(database: Path) -> set[str]:
    """The names of the blobs' files that a snapshot names."""
    with closing(sqlite3.connect(f"file:{database}?immutable=1", uri=True)) as read:
        rows = read.execute("SELECT digest FROM blobs WHERE size > ?", [MAX_ROW_BYTES])
        return {digest.hex() for (digest,) in rows}


def _copy(source: Path, target: Path) -> str:
    """Copy a file so that `target` is whole as soon as it is there; returns the SHA-256 in hexadecimal."""
    fresh = target.with_name(f".{target.name}")
    seen = sha256()
    with source.open("rb") as read, fresh.open("wb") as write:
        while chunk := read.read(_CHUNK_BYTES):
            seen.update(chunk)
            write.write(chunk)
        write.flush()
        os.fsync(write.fileno())
    fresh.rename(target)
    return seen.hexdigest()


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be read: {error.strerror}; take an earlier backup") from error


def _prune(folder: Path, keep: int) -> int:
    """Remove all but the latest backups, then the blobs that none names any more."""
    whole = sorted(path for path in folder.iterdir() if (path / ABOUT).is_file() and path.name[0] != ".")
    for path in whole[:-keep]:
        path.rename(folder / f".{path.name}")
    _sync(folder)
    _sweep(folder)
    named = set[str]().union(*(_named(path / DATABASE_FILE) for path in whole[-keep:]))
    for blob in (folder / BLOBS).iterdir():
        if blob.name not in named:
            blob.unlink()
    return len(whole[:-keep])


def _sweep(folder: Path) -> None:
    """Delete what unfinished backups left."""
    for path in folder.glob(".*"):
        shutil.rmtree(path)
    for path in (folder / BLOBS).glob(".*"):
        with suppress(FileNotFoundError):
            path.unlink()


def _sync(folder: Path) -> None:
    with opened(folder) as descriptor:
        os.fsync(descriptor)
