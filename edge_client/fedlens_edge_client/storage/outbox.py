"""The outbox: results that are on this disk and may not be on the server's yet.

A result enters together with its client state, after the tensors of both; it leaves after the server's final response.
So a crash at any moment neither loses a result nor trains twice.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedlens_edge_client.storage.client_state import ClientState
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_edge_client.storage.tensor_files import EncodedTensors, TensorFiles
from fedlens_proto import wire
from fedlens_proto.v1 import assignment_pb2, update_pb2


@dataclass(frozen=True, slots=True)
class Result:
    """The request to the server for one assignment.

    Attributes:
        task: Of the assignment.
        round_number: Of the assignment.
        answer: Kind of the result; it selects the endpoint.
        header: Framed, as at the start of the body.
        body_sha256: Digest that the receipt must contain.
        blobs: The rest of the body, in the header's order; large ones are files.
    """

    task: int
    round_number: int
    answer: assignment_pb2.Answer
    header: bytes
    body_sha256: bytes
    blobs: tuple[bytes | Path, ...]


class Outbox:
    """The results of one client that await a receipt."""

    def __init__(self, folder: StateFolder, files: TensorFiles, client_state: ClientState) -> None:
        """Use the database of `folder`; delete files that no row names, left by a crash."""
        self._folder = folder
        self._files = files
        self._client_state = client_state
        self._sweep()

    def put(
        self,
        assignment: assignment_pb2.Assignment,
        header: update_pb2.UpdateHeader,
        uploads: Sequence[EncodedTensors],
        keeps: Mapping[str, EncodedTensors],
    ) -> Result:
        """Write a result and its client state to disk in one transaction."""
        framed = wire.frame_update(header)
        body = sha256(framed)
        for upload in uploads:
            # What is inline was encoded just now, and opening it would check it again.
            body.update(upload.inline or self._files.open(upload.sha256, None).raw)
        key = (assignment.task, assignment.round)
        row = (*key, assignment.answer, framed, body.digest())
        blobs = [(upload.sha256, upload.inline) for upload in uploads]
        with self._folder.transaction() as db:
            db.execute("INSERT INTO outbox VALUES (?, ?, ?, ?, ?)", row)
            numbered = [(*key, position, *blob) for position, blob in enumerate(blobs)]
            db.executemany("INSERT INTO outbox_blobs VALUES (?, ?, ?, ?, ?)", numbered)
            self._client_state.put(db, *key, keeps)
        return self._result(row, blobs)

    def first(self) -> Result | None:
        """The oldest result that awaits its receipt."""
        rows = self._folder.select("SELECT * FROM outbox ORDER BY rowid LIMIT 1")
        if not rows:
            return None
        blobs = self._folder.select(
            "SELECT blob_sha256, blob FROM outbox_blobs WHERE task = ? AND round = ? ORDER BY position", *rows[0][:2]
        )
        return self._result(rows[0], blobs)

    def delivered(self, result: Result) -> None:
        """Remove a result that the server has; its client state becomes current."""
        self._remove(result, self._client_state.make_current)

    def refused(self, result: Result) -> None:
        """Remove a result that the server refuses for good, and its client state."""
        self._remove(result, self._client_state.drop)

    def _remove(self, result: Result, settle: Callable[[sqlite3.Connection, int, int], None]) -> None:
        with self._folder.transaction() as db:
            settle(db, result.task, result.round_number)
            for table in ("outbox", "outbox_blobs"):
                db.execute(f"DELETE FROM {table} WHERE task = ? AND round = ?", (result.task, result.round_number))
        self._sweep()

    def _result(self, row: Sequence[Any], blobs: Iterable[tuple[bytes, bytes | None]]) -> Result:
        held = [self._files.path(digest) if inline is None else inline for digest, inline in blobs]
        task, round_number, answer, header, body_sha256 = row
        return Result(task, round_number, answer, header, body_sha256, tuple(held))

    def _sweep(self) -> None:
        named = self._folder.select(
            "SELECT blob_sha256 FROM outbox_blobs WHERE blob IS NULL "
            "UNION SELECT blob_sha256 FROM client_state WHERE blob IS NULL"
        )
        self._files.sweep([digest for (digest,) in named])
