"""Values computed once per photo: features of the frozen backbone, or decoded pixels for a whole-model bundle.

They are stored in one SQLite file, which clients and processes may share. They can be computed again: a power failure
may lose the latest values, and a damaged file is replaced.
"""

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from fedlens_edge_client.errors import StateError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS feature (
    space BLOB, photo BLOB, used_day INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (space, photo)
);
"""
_DAY_S = 86400
_LOCKED_TIMEOUT_S = 30.0
_LOOK_AGAIN_S = 0.02


class FeatureCache:
    """Values by (space, photo digest)."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open or create the file; beyond `max_bytes` the least recently used values are deleted.

        Raises:
            StateError: The file cannot be opened; a damaged file is replaced instead.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._database = _open(path)

    @classmethod
    def in_folder(cls, folder: Path, max_bytes: int) -> Self:
        """Open or create the cache in a folder, and the folder; errors as in the constructor."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"the folder of features cannot be made: {error}") from error
        return cls(folder / "features.sqlite3", max_bytes)

    def get(self, name: bytes, photos: Iterable[bytes]) -> dict[bytes, bytes]:
        """The cached values, by photo digest."""
        found: dict[bytes, bytes] = {}
        stale: list[tuple[int, bytes, bytes]] = []
        today, wanted = _today(), list(photos)
        with self._forgiving():
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
        return {}

    def put(self, name: bytes, values: Mapping[bytes, bytes]) -> None:
        """Store values by photo digest; on a full disk, do nothing."""
        rows = [(name, photo, _today(), value) for photo, value in values.items()]
        with self._forgiving():
            with self._database as db:
                db.executemany("INSERT OR REPLACE INTO feature VALUES (?, ?, ?, ?)", rows)
            self._trim()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Replace a damaged file; do without one that is closed, locked for long or full. Values can be computed."""
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.ProgrammingError):
            pass
        except sqlite3.DatabaseError:
            self._database.close()
            _delete(self._path)
            self._database = _open(self._path)

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


def _open(path: Path) -> sqlite3.Connection:
    until = time.monotonic() + _LOCKED_TIMEOUT_S
    while True:
        try:
            return _connect(path)
        except sqlite3.OperationalError as error:
            # Others may use the file, so leave it. SQLite itself does not wait for a process that is creating it.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise StateError(f"feature cache {path} cannot be opened: {error}") from error
            time.sleep(_LOOK_AGAIN_S)
        except sqlite3.DatabaseError:
            _delete(path)


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_LOCKED_TIMEOUT_S, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        # The weakest setting that keeps the database intact in a power failure; clients would train on wrong features.
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
