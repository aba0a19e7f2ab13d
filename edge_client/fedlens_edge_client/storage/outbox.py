"""The outbox: results that are on this disk and perhaps not yet on the server's.

A result enters together with its kept sets, after its tensors; it leaves when the server has answered for good.
So a crash at any moment loses no result and trains none twice.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fedlens_edge_client.client.events import RoundReported
from fedlens_edge_client.storage.client_state import KeptSets
from fedlens_edge_client.storage.state import State
from fedlens_edge_client.storage.tensor_files import StoredBlob, TensorFiles
from fedlens_edge_client.training.evaluation import Evaluation
from fedlens_proto import wire
from fedlens_proto.v1 import assignment_pb2, update_pb2


@dataclass(frozen=True, slots=True)
class Result:
    """What goes to the server for one assignment.

    Attributes:
        task: Of the assignment.
        round_number: Of the assignment.
        answer: To which address it goes.
        header: Framed, as it stands at the start of the body.
        blob: The rest of the body: bytes, a file, or nothing.
        body_sha256: What the receipt must say.
    """

    task: int
    round_number: int
    answer: assignment_pb2.Answer
    header: bytes
    blob: bytes | Path | None
    body_sha256: bytes

    @property
    def body_size(self) -> int:
        """Bytes of the request's body."""
        if isinstance(self.blob, Path):
            return len(self.header) + self.blob.stat().st_size
        return len(self.header) + len(self.blob or b"")

    def reported(self) -> RoundReported:
        """What is told when the server has it."""
        header = update_pb2.UpdateHeader.FromString(self.header[wire.LENGTH.size :])
        sums = {
            s.moment: Evaluation(s.count, s.correct, s.loss, tuple(s.confusion) or None) for s in header.evaluations
        }
        return RoundReported(
            task=self.task,
            round_number=self.round_number,
            num_examples=header.num_examples,
            upload_bytes=self.body_size,
            start=sums.get(update_pb2.EVALUATION_MOMENT_START),
            end=sums.get(update_pb2.EVALUATION_MOMENT_END),
            fine_tuning=sums.get(update_pb2.EVALUATION_MOMENT_FINE_TUNED),
        )


class Outbox:
    """The results of one client that await a receipt."""

    def __init__(self, state: State, files: TensorFiles, kept: KeptSets) -> None:
        """Those in the database of `state`; files that no row names, left by a crash, are deleted."""
        self._state = state
        self._files = files
        self._kept = kept
        self._sweep()

    def put(
        self,
        assignment: assignment_pb2.Assignment,
        header: update_pb2.UpdateHeader,
        upload: StoredBlob | None,
        keep: Mapping[str, StoredBlob],
    ) -> Result:
        """Have a result and its kept sets on disk, in one transaction."""
        framed = wire.frame_update(header)
        body = sha256(framed)
        if upload is not None:
            body.update(self._files.open(upload.sha256, upload.inline).raw)
        with self._state.transaction() as db:
            db.execute(
                "INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    assignment.task,
                    assignment.round,
                    assignment.answer,
                    framed,
                    body.digest(),
                    None if upload is None else upload.sha256,
                    None if upload is None else upload.inline,
                ),
            )
            self._kept.put(db, assignment.task, assignment.round, keep)
            plan = assignment.local_plan
            # A pass that only asks names any weights, which are nobody's model.
            if plan.stages or plan.HasField("evaluation"):
                rules = assignment_pb2.LocalPlan(start=plan.start, extractors=plan.extractors)
                self._kept.put_start_rules(db, assignment.task, rules.SerializeToString())
        return Result(
            task=assignment.task,
            round_number=assignment.round,
            answer=assignment.answer,
            header=framed,
            blob=None if upload is None else upload.inline or self._files.path(upload.sha256),
            body_sha256=body.digest(),
        )

    def first(self) -> Result | None:
        """The oldest result that awaits its receipt."""
        with self._state.transaction() as db:
            row = db.execute("SELECT * FROM outbox ORDER BY rowid LIMIT 1").fetchone()
        if row is None:
            return None
        task, round_number, answer, header, body_sha256, blob_sha256, inline = row
        return Result(
            task=task,
            round_number=round_number,
            answer=answer,
            header=header,
            blob=self._files.path(blob_sha256) if inline is None and blob_sha256 is not None else inline,
            body_sha256=body_sha256,
        )

    def delivered(self, result: Result) -> None:
        """The server has it: its kept sets become current."""
        with self._state.transaction() as db:
            self._kept.make_current(db, result.task, result.round_number)
            self._delete(db, result)
        self._sweep()

    def refused(self, result: Result) -> None:
        """The server will never take it: its kept sets are dropped."""
        with self._state.transaction() as db:
            self._kept.drop(db, result.task, result.round_number)
            self._delete(db, result)
        self._sweep()

    def _delete(self, db: sqlite3.Connection, result: Result) -> None:
        db.execute("DELETE FROM outbox WHERE task = ? AND round = ?", (result.task, result.round_number))

    def _sweep(self) -> None:
        with self._state.transaction() as db:
            named = db.execute(
                "SELECT blob_sha256 FROM outbox WHERE blob_sha256 NOT NULL AND blob IS NULL "
                "UNION SELECT blob_sha256 FROM kept WHERE blob IS NULL"
            ).fetchall()
        self._files.sweep([digest for (digest,) in named])
