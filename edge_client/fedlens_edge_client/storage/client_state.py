"""Client state: tensors that a local plan leaves on the client for later rounds, by (task, name, round).

State is written together with the result of its round; it becomes current once the server has that result, and is
dropped if the server refuses the result.
"""

import sqlite3
from collections.abc import Mapping

from fedlens_edge_client.errors import StateError
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_edge_client.storage.tensor_files import EncodedTensors, TensorFiles
from fedlens_proto.blob import Blob


class ClientState:
    """The client state of one client, for all of its tasks."""

    def __init__(self, folder: StateFolder, files: TensorFiles) -> None:
        """Use the database of `folder`, and `files` for large blobs."""
        self._folder = folder
        self._files = files

    def current(self, task: int, name: str) -> Blob | None:
        """The current tensors under this name, float32 or int64; None if there are none yet."""
        try:
            return self._current(task, name)
        except StateError:
            # A delivery in another thread may have made newer state current meanwhile, and deleted the file.
            return self._current(task, name)

    def _current(self, task: int, name: str) -> Blob | None:
        rows = self._folder.select(
            "SELECT blob_sha256, blob FROM client_state WHERE task = ? AND name = ? AND is_current "
            "ORDER BY round DESC LIMIT 1",
            *(task, name),
        )
        return self._files.open(*rows[0]) if rows else None

    def put(self, db: sqlite3.Connection, task: int, round_number: int, state: Mapping[str, EncodedTensors]) -> None:
        """Write new state of a round, not yet current."""
        db.executemany(
            "INSERT OR REPLACE INTO client_state VALUES (?, ?, ?, 0, ?, ?)",
            [(task, name, round_number, stored.sha256, stored.inline) for name, stored in state.items()],
        )

    def make_current(self, db: sqlite3.Connection, task: int, round_number: int) -> None:
        """Replace current state by the new state of this round."""
        fresh = "SELECT name FROM client_state WHERE task = ? AND round = ? AND NOT is_current"
        db.execute(
            f"DELETE FROM client_state WHERE task = ? AND is_current AND name IN ({fresh})", (task, task, round_number)
        )
        db.execute("UPDATE client_state SET is_current = 1 WHERE task = ? AND round = ?", (task, round_number))

    def drop(self, db: sqlite3.Connection, task: int, round_number: int) -> None:
        """Delete the new state of this round; current state stays."""
        db.execute("DELETE FROM client_state WHERE task = ? AND round = ? AND NOT is_current", (task, round_number))
