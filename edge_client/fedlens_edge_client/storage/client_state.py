"""Kept sets: tensors that a local plan left on the client for later rounds, by (task, set, round).

Written with the result that they belong to, current once the server has that result, dropped if it is refused.
"""

import sqlite3
from collections.abc import Mapping

from fedlens_edge_client.storage.state import State
from fedlens_edge_client.storage.tensor_files import StoredBlob, TensorFiles
from fedlens_proto.blob import Blob


class KeptSets:
    """The kept sets of one client."""

    def __init__(self, state: State, files: TensorFiles) -> None:
        """Those in the database of `state`, the large ones in `files`."""
        self._state = state
        self._files = files

    def current(self, task: int, name: str) -> Blob | None:
        """The tensors kept last under this name, float32 or int64; None if there are none yet."""
        with self._state.transaction() as db:
            row = db.execute(
                "SELECT blob_sha256, blob FROM kept WHERE task = ? AND name = ? AND is_current ORDER BY round DESC",
                (task, name),
            ).fetchone()
        return None if row is None else self._files.open(*row)

    def start_rules(self, task: int) -> bytes | None:
        """The local plan, serialised, with nothing but the start rules and extractors of this task's last pass."""
        with self._state.transaction() as db:
            row = db.execute("SELECT local_plan FROM start_rules WHERE task = ?", (task,)).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, db: sqlite3.Connection, task: int, round_number: int, sets: Mapping[str, StoredBlob]) -> None:
        """Write the sets of a pass, not yet current."""
        db.executemany(
            "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, 0, ?, ?)",
            [(task, name, round_number, stored.sha256, stored.inline) for name, stored in sets.items()],
        )

    def put_start_rules(self, db: sqlite3.Connection, task: int, rules: bytes) -> None:
        """Write the rules by which a pass starts, as `start_rules` gives them."""
        db.execute("INSERT OR REPLACE INTO start_rules VALUES (?, ?)", (task, rules))

    def make_current(self, db: sqlite3.Connection, task: int, round_number: int) -> None:
        """Let the sets of this round replace those before."""
        fresh = "SELECT name FROM kept WHERE task = ? AND round = ? AND NOT is_current"
        db.execute(f"DELETE FROM kept WHERE task = ? AND is_current AND name IN ({fresh})", (task, task, round_number))
        db.execute("UPDATE kept SET is_current = 1 WHERE task = ? AND round = ?", (task, round_number))

    def drop(self, db: sqlite3.Connection, task: int, round_number: int) -> None:
        """Delete the sets of this round; those before stay current."""
        db.execute("DELETE FROM kept WHERE task = ? AND round = ? AND NOT is_current", (task, round_number))
