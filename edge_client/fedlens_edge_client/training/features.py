"""What was computed once a photo: features of the frozen backbone, or decoded pixels for a whole-model bundle.

One SQLite file, which clients and processes may share. It can be computed again: the last values may be lost in a power
failure, and a damaged file is replaced.
"""

import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Self

from fedlens_edge_client.errors import StateError
from fedlens_proto import manifest as manifests
from fedlens_proto.v1 import manifest_pb2

_SCHEMA = """
CREATE TABLE IF NOT EXISTS feature (
    space BLOB, photo BLOB, used_day INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (space, photo)
);
"""
_DAY_S = 86400
_LOCKED_TIMEOUT_S = 30.0
_LOOK_AGAIN_S = 0.02


def space(manifest: manifest_pb2.Manifest, form: manifest_pb2.ProgramFormat) -> bytes:
    """The name, 32 bytes, of everything that what is cached of a photo depends on besides the photo.

    These are the rule of preprocessing with its size and, with a frozen backbone, its weights and its program in the
    format that is run: engines differ in last digits, and no client's features may depend on who shares its cache.
    """
    rule = manifest.preprocessing
    parts = [b"fedlens/features/v1", *(n.to_bytes(4, "little") for n in (rule.version, rule.height, rule.width))]
    if manifest.bundle_class == manifest_pb2.BUNDLE_CLASS_FROZEN_BACKBONE:
        parts += [_part(manifest, "embed", form), manifest.frozen]
    return sha256(b"".join(parts)).digest()


def stored_views_space(manifest: manifest_pb2.Manifest, form: manifest_pb2.ProgramFormat) -> bytes:
    """As `space`, for the features of a photo's stored views, one after the other."""
    program = _part(manifest, "view", form)
    count = manifest.stored_views.to_bytes(4, "little")
    return sha256(b"".join([b"fedlens/stored-views/v1", space(manifest, form), program, count])).digest()


def extracted_space(manifest: manifest_pb2.Manifest, form: manifest_pb2.ProgramFormat, extractor: bytes) -> bytes:
    """As `space`, for the outputs of program `extract` with the set of tensors whose blob has this digest."""
    program = _part(manifest, "extract", form)
    return sha256(b"".join([b"fedlens/extracted/v1", space(manifest, form), program, extractor])).digest()


def _part(manifest: manifest_pb2.Manifest, program: str, form: manifest_pb2.ProgramFormat) -> bytes:
    """The digest of a program's file; of another of its files, if it has none in this format and cannot be run."""
    files = manifests.program(manifest, program).files
    return next((file.sha256 for file in files if file.format == form), min(file.sha256 for file in files))


class FeatureCache:
    """Values by (space, photo digest)."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open or make the file; beyond `max_bytes` of values the least recently used are deleted.

        Raises:
            StateError: It cannot be opened; a damaged one is replaced instead.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._database = _open(path)

    @classmethod
    def in_folder(cls, folder: Path, max_bytes: int) -> Self:
        """Open or make the cache that a folder holds, and the folder; errors as above."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder / "features.sqlite3", max_bytes)

    def get(self, name: bytes, photos: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values that are there, by photo digest."""
        try:
            return self._get(name, photos)
        except sqlite3.OperationalError:
            # Another process has it locked for very long; what is asked for can be computed.
            return {}
        except sqlite3.DatabaseError:
            self._start_anew()
            return {}

    def put(self, name: bytes, values: Mapping[bytes, bytes]) -> None:
        """Store values by photo digest, as far as there is room on the disk."""
        rows = [(name, photo, _today(), value) for photo, value in values.items()]
        try:
            with self._database as db:
                db.executemany("INSERT OR REPLACE INTO feature VALUES (?, ?, ?, ?)", rows)
            self._trim()
        except sqlite3.OperationalError:
            return
        except sqlite3.DatabaseError:
            self._start_anew()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _get(self, name: bytes, photos: Iterable[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        stale: list[tuple[int, bytes, bytes]] = []
        today = _today()
        wanted = list(photos)
        for start in range(0, len(wanted), 500):
            some = wanted[start : start + 500]
            marks = ",".join("?" * len(some))
            rows = self._database.execute(
                f"SELECT photo, value, used_day FROM feature WHERE space = ? AND photo IN ({marks})", (name, *some)
            )
            for photo, value, used_day in rows:
                found[photo] = value
                if used_day != today:
                    stale.append((today, name, photo))
        if stale:
            with self._database as db:
                db.executemany("UPDATE feature SET used_day = ? WHERE space = ? AND photo = ?", stale)
        return found

    def _trim(self) -> None:
        while self._bytes() > self._max_bytes:
            with self._database as db:
                gone = db.execute(
                    "DELETE FROM feature WHERE rowid IN (SELECT rowid FROM feature ORDER BY used_day, rowid "
                    "LIMIT max(1, (SELECT count(*) / 4 FROM feature)))"
                ).rowcount
            if not gone:
                return

    def _bytes(self) -> int:
        pages, free, size = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _start_anew(self) -> None:
        self._database.close()
        _delete(self._path)
        self._database = _open(self._path)


def _open(path: Path) -> sqlite3.Connection:
    until = time.monotonic() + _LOCKED_TIMEOUT_S
    while True:
        try:
            return _connect(path)
        except sqlite3.OperationalError as error:
            # Others may be using the file, so it stays where it is. SQLite itself does not wait for the one who is
            # just making it.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise StateError(f"feature cache {path} cannot be opened: {error}") from error
            time.sleep(_LOOK_AGAIN_S)
        except sqlite3.DatabaseError:
            _delete(path)


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_LOCKED_TIMEOUT_S, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        # The least with which a power failure leaves a whole database: wrong features would be trained on.
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(_SCHEMA)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()


def _today() -> int:
    return int(time.time()) // _DAY_S
