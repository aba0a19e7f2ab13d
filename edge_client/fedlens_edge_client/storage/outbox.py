"""The outbox: results that are on this disk and may not be on the server's yet.

A result enters together with its client state, after the tensors of both; it leaves after the server's final response.
So a crash at any moment neither loses a result nor trains twice.
"""

import sqlite3
from collections.abc import Callable, Mapping
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
        blob: The rest of the body: bytes, a file, or nothing.
    """

    task: int
    round_number: int
    answer: assignment_pb2.Answer
    header: bytes
    body_sha256: bytes
    blob: bytes | Path | None


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
        upload: EncodedTensors | None,
        keep: Mapping[str, EncodedTensors],
    ) -> Result:
        """Write a result and its client state to disk in one transaction."""
        framed = wire.frame_update(header)
        body = sha256(framed)
        if upload is not None:
            body.update(self._files.open(upload.sha256, upload.inline).raw)
        stored = (None, None) if upload is None else (upload.sha256, upload.inline)
        row = (assignment.task, assignment.round, assignment.answer, framed, body.digest(), *stored)
        with self._folder.transaction() as db:
            db.execute("INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            self._client_state.put(db, assignment.task, assignment.round, keep)
            plan = assignment.local_plan
            # A plan that only asks for statistics may start from any weights; do not predict with them.
            if plan.stages or plan.HasField("evaluation"):
                rules = assignment_pb2.LocalPlan(start=plan.start, extractors=plan.extractors)
                self._client_state.put_start_rules(db, assignment.task, rules.SerializeToString())
        return self._result(row)

    def first(self) -> Result | None:
        """The oldest result that awaits its receipt."""
        rows = self._folder.select("SELECT * FROM outbox ORDER BY rowid LIMIT 1")
        return self._result(rows[0]) if rows else None

    def delivered(self, result: Result) -> None:
        """Remove a result that the server has; its client state becomes current."""
        self._remove(result, self._client_state.make_current)

    def refused(self, result: Result) -> None:
        """Remove a result that the server refuses for good, and its client state."""
        self._remove(result, self._client_state.drop)

    def _remove(self, result: Result, settle: Callable[[sqlite3.Connection, int, int], None]) -> None:
        with self._folder.transaction() as db:
            settle(db, result.task, result.round_number)
            db.execute("DELETE FROM outbox WHERE task = ? AND round = ?", (result.task, result.round_number))
        self._sweep()

    def _result(self, row: tuple[Any, ...]) -> Result:
        task, round_number, answer, header, body_sha256, digest, inline = row
        blob = self._files.path(digest) if inline is None and digest is not None else inline
        return Result(task, round_number, answer, header, body_sha256, blob)

    def _sweep(self) -> None:
        named = self._folder.select(
            "SELECT blob_sha256 FROM outbox WHERE blob_sha256 NOT NULL AND blob IS NULL "
            "UNION SELECT blob_sha256 FROM client_state WHERE blob IS NULL"
        )
        self._files.sweep([digest for (digest,) in named])
