"""Backups of a state: snapshots of its database, and the blobs that they name, once for all snapshots.

    blobs/<sha256>          large blobs
    <time>/server.sqlite3   a snapshot of the database, whatever kind of database it is
    <time>/blobs.txt        the blobs that it names; in a bucket alone
    <time>/backup.json      its time and digest
    .<anything>             of a backup that has not ended, or that is being removed; the next backup deletes it

In a folder a backup has its name only when all of its files are on disk; in a bucket it is whole once it has its
`backup.json`, which comes last and goes first.
"""

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedlens_server.errors import StoreUnusable, Unavailable
from fedlens_server.store.address import Bucket, StateAddress
from fedlens_server.store.copies.moving import Reader, copied_into, digest_of, pieces_of, reader, snapshot
from fedlens_server.store.dialects import DATABASE_FILE, Sqlite
from fedlens_server.store.incoming import MAX_ROW_BYTES, opened

BLOBS = "blobs"
ABOUT = "backup.json"
LISTED = "blobs.txt"
_SCRATCH = "backup-"  # in the state's folder, while a backup goes into a bucket
Place = Path | Bucket
"""Of all backups."""


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


def make(address: StateAddress, place: Place, taken_at: float, keep: int = 0) -> Copied:
    """Back up a state while it is used. Blocks on the disk and the network.

    Args:
        address: Of the state, from which no bytes of a blob may be deleted meanwhile.
        place: Of all backups.
        taken_at: A time before this call, in seconds since the epoch.
        keep: The number of latest backups that stay, with this one; 0: all.

    Raises:
        OSError: A folder cannot be read or written; the backups that there were are whole.
        Unavailable: A bucket or the database cannot be reached; likewise.
    """
    name = datetime.fromtimestamp(taken_at, UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
    if isinstance(place, Path):
        return _make_in_folder(address, place, name, taken_at, keep)
    for left in address.folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left)  # a kill ended that backup
    with tempfile.TemporaryDirectory(dir=address.folder, prefix=_SCRATCH) as scratch:
        return _make_in_bucket(address, place, name, taken_at, keep, Path(scratch))


def _make_in_folder(address: StateAddress, folder: Path, name: str, taken_at: float, keep: int) -> Copied:
    blobs = folder / BLOBS
    blobs.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(folder)
    fresh = folder / f".{name}"
    fresh.mkdir(mode=0o700)
    digest, keys = _snapshot(address, fresh / DATABASE_FILE)
    copied_bytes = (fresh / DATABASE_FILE).stat().st_size
    missing = sorted(keys.keys() - {path.name for path in blobs.iterdir()})
    read = reader(address)
    for blob in missing:
        copied_bytes += _fetch(read, blob, keys[blob], blobs / blob)
    _sync(blobs)
    about = Backup(taken_at=taken_at, database_sha256=digest)
    with (fresh / ABOUT).open("x", encoding="utf-8") as file:
        json.dump(asdict(about), file)
        file.flush()
        os.fsync(file.fileno())
    _sync(fresh)
    fresh.rename(folder / name)
    _sync(folder)
    removed = _prune(folder, keep) if keep else 0
    return Copied(name=name, blobs=len(keys), copied=len(missing), copied_bytes=copied_bytes, removed=removed)


def _make_in_bucket(
    address: StateAddress, bucket: Bucket, name: str, taken_at: float, keep: int, scratch: Path
) -> Copied:
    from fedlens_server.store.objects import ObjectStore

    objects = ObjectStore(bucket)
    digest, keys = _snapshot(address, scratch / DATABASE_FILE)
    copied_bytes = (scratch / DATABASE_FILE).stat().st_size
    missing = sorted(keys.keys() - {key.rpartition("/")[2] for key, _ in objects.list(BLOBS)})
    read = reader(address)
    for blob in missing:
        copied_bytes += _fetch(read, blob, keys[blob], scratch / blob)
        objects.put(f"{BLOBS}/{blob}", scratch / blob)
        (scratch / blob).unlink()
    objects.put(f"{name}/{LISTED}", "\n".join(sorted(keys)).encode())
    objects.put(f"{name}/{DATABASE_FILE}", scratch / DATABASE_FILE)
    about = Backup(taken_at=taken_at, database_sha256=digest)
    objects.put(f"{name}/{ABOUT}", json.dumps(asdict(about)).encode())
    there = [key for key, _ in objects.list()]
    whole = sorted(key.rpartition("/")[0] for key in there if key.endswith(f"/{ABOUT}"))
    stay = whole[-keep:] if keep else whole
    left = {key for key in there if key.rpartition("/")[0] not in (*stay, BLOBS) and key.count("/") == 1}
    objects.delete(key for key in left if key.endswith(f"/{ABOUT}"))
    objects.delete(key for key in left if not key.endswith(f"/{ABOUT}"))
    named = {f"{BLOBS}/{blob}" for one in stay for blob in b"".join(objects.read(f"{one}/{LISTED}")).decode().split()}
    objects.delete(key for key in there if key.startswith(f"{BLOBS}/") and key not in named)
    removed = len(whole) - len(stay)
    return Copied(name=name, blobs=len(keys), copied=len(missing), copied_bytes=copied_bytes, removed=removed)


def check(backup: Place) -> Backup:
    """Read a backup and all blobs that it names, and compare their digests.

    Raises:
        StoreUnusable: It is no whole backup, or a file is missing or damaged.
    """
    about = _about(backup)
    with tempfile.TemporaryDirectory() as scratch:
        database = Path(scratch) / DATABASE_FILE
        _restore_database(backup, about, database)
        for name in sorted(_named(database)):
            if digest_of(_pieces(backup, BLOBS, name)) != name:
                raise StoreUnusable(f"{_beside(backup) / name} is damaged; take an earlier backup")
    return about


def restore(backup: Place, data: Path) -> Backup:
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
        _restore_database(backup, about, database)
        for name in sorted(_named(database)):
            if copied_into(data / BLOBS / name, _pieces(backup, BLOBS, name)) != name:
                raise StoreUnusable(f"{_beside(backup) / name} is damaged; take an earlier backup, and remove {data}")
        _sync(data / BLOBS)
        database.rename(data / DATABASE_FILE)
        _sync(data)
    except OSError as error:
        raise StoreUnusable(f"{error.filename or data}: {error.strerror}") from error
    return about


def place_of(text: str) -> Place:
    """The folder or the bucket that a text names.

    Raises:
        ValueError: It names a bucket that cannot be one.
    """
    return Bucket.parse(text) if text.startswith("s3://") else Path(text)


def _restore_database(backup: Place, about: Backup, target: Path) -> None:
    if copied_into(target, _pieces(backup, DATABASE_FILE)) != about.database_sha256:
        raise StoreUnusable(f"{backup / DATABASE_FILE} is damaged; take another backup")


def _beside(backup: Place) -> Place:
    return (backup.parent if isinstance(backup, Path) else _split(backup)[0]) / BLOBS


def _split(backup: Bucket) -> tuple[Bucket, str]:
    prefix, _, name = backup.prefix.rpartition("/")
    return Bucket(backup.name, prefix), name


def _pieces(backup: Place, *names: str) -> Iterator[bytes]:
    """A file of a backup, or a blob beside it."""
    try:
        if isinstance(backup, Path):
            yield from pieces_of((backup.parent if len(names) > 1 else backup).joinpath(*names))
        else:
            from fedlens_server.store.objects import ObjectStore

            place, name = _split(backup)
            yield from ObjectStore(place).read("/".join(names if len(names) > 1 else (name, *names)))
    except OSError as error:
        raise StoreUnusable(f"{error.filename} cannot be read: {error.strerror}; take an earlier backup") from error
    except Unavailable as error:
        raise StoreUnusable(f"{backup}: {'/'.join(names)}: {error}") from error


def _about(backup: Place) -> Backup:
    try:
        if isinstance(backup, Path) and backup.name.startswith("."):
            raise ValueError("it has not been finished")
        return Backup(**json.loads(b"".join(_pieces(backup, ABOUT))))
    except (StoreUnusable, ValueError, TypeError) as error:
        raise StoreUnusable(
            f"{backup} is no whole backup ({error}); name one that `fedlens backup` has written, such as "
            "2026-01-31T04-00-00.000000Z"
        ) from error


def _snapshot(address: StateAddress, target: Path) -> tuple[str, dict[str, str | None]]:
    """Copy a database that others write, as of one commit, into a SQLite file.

    Returns:
        The file's SHA-256, and by the SHA-256 of each large blob the key of its object, both in hexadecimal; None: it
        is a file. The snapshot itself knows no keys.
    """
    source = address.open_database()
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
        rows = to.execute("SELECT digest, object FROM blobs WHERE size > ?", [MAX_ROW_BYTES]).fetchall()
        to.execute("UPDATE blobs SET object = NULL WHERE object IS NOT NULL")
        to.commit()
    with opened(target) as descriptor:
        os.fsync(descriptor)
    return digest_of(pieces_of(target)), {digest.hex(): key for digest, key in rows}


def _fetch(read: Reader, blob: str, key: str | None, target: Path) -> int:
    """Copy a blob of the state; returns its size."""
    if copied_into(target, read(bytes.fromhex(blob), key)) != blob:
        target.unlink()
        raise OSError(0, "the bytes that are stored are not those that came", blob)
    return target.stat().st_size


def _named(database: Path) -> set[str]:
    """The names of the blobs' files that a snapshot names."""
    with closing(sqlite3.connect(f"file:{database}?immutable=1", uri=True)) as read:
        rows = read.execute("SELECT digest FROM blobs WHERE size > ?", [MAX_ROW_BYTES])
        return {digest.hex() for (digest,) in rows}


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
