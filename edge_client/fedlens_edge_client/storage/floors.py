"""What a client remembers of publishers, whichever server it works for: their floors, and the bundles it has used.

All clients of one application on a device can share one file, and several processes may use it at a time.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlens_edge_client.errors import StateError

FLOORS_FILE = "floors.sqlite3"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS floors (
    publisher BLOB, name TEXT, floor INTEGER NOT NULL, PRIMARY KEY (publisher, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used (bundle BLOB PRIMARY KEY) WITHOUT ROWID;
"""
_RAISE = """
INSERT INTO floors VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET floor = max(floor, excluded.floor)
"""
# SQLite keeps no order among those that wait: one may wait until a slow disk has written for all others.
_LOCKED_TIMEOUT_S = 30.0


class Floors:
    """The greatest floor of each publisher and name of bundle, and the digests of bundles that were used."""

    def __init__(self, path: Path) -> None:
        """Use the database of this file, which is made when something is noted first."""
        self._path = path

    def of(self, publisher: bytes, name: str) -> int:
        """The greatest floor that was noted, else 0; errors as in `raise_to`."""
        query = "SELECT floor FROM floors WHERE publisher = ? AND name = ?"
        with self._database() as database:
            found = database.execute(query, (publisher, name)).fetchone()
        return 0 if found is None else int(found[0])

    def raise_to(self, publisher: bytes, name: str, floor: int) -> None:
        """Note a floor, unless a greater one is noted already.

        Raises:
            StateError: The file cannot be used.
        """
        self._write(_RAISE, publisher, name, floor)

    def has_used(self, bundle: bytes) -> bool:
        """Tell whether a use of a bundle, by its digest, was noted; errors as in `raise_to`."""
        with self._database() as database:
            return bool(database.execute("SELECT 1 FROM used WHERE bundle = ?", (bundle,)).fetchall())

    def note_use(self, bundle: bytes) -> None:
        """Note that a bundle was used while its statement held; errors as in `raise_to`."""
        self._write("INSERT OR IGNORE INTO used VALUES (?)", bundle)

    def _write(self, statement: str, *values: object) -> None:
        with self._database() as database, database:
            database.execute(statement, values)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self._path, timeout=_LOCKED_TIMEOUT_S)
            try:
                database.executescript(_SCHEMA)
                yield database
            finally:
                database.close()
        except (OSError, sqlite3.Error) as error:
            raise StateError(f"{self._path}, which says what publishers withdrew, cannot be used: {error}") from error
