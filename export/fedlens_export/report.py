"""What an export tells while it runs: the stage it is at, and of each file how far it is from the model."""

from collections.abc import Callable
from dataclasses import dataclass

from fedlens_export.programs.pte_program import Delegation
from fedlens_proto.v1 import manifest_pb2 as pb


@dataclass(frozen=True)
class FileReport:
    """One file of a program that passed its comparison with the model.

    Attributes:
        program: Its name.
        format: The file's.
        size: In bytes.
        difference: The largest for seeded inputs, measured as `parity.TOLERANCE` says; None: nothing here runs it.
        allowed: The largest that passes, in words; None: nothing here runs it.
        after_epoch: The largest of the weights after one epoch, at most `parity.TOLERANCE`; None: not a `step`, or of a
            model trained as a whole.
        delegation: Of a `.pte`, which operators run where.
    """

    program: str
    format: pb.ProgramFormat
    size: int
    difference: float | None
    allowed: str | None = None
    after_epoch: float | None = None
    delegation: Delegation | None = None


OnStage = Callable[[str], None]
"""Told what is being done, one line a stage."""

OnFile = Callable[[FileReport], None]
"""Told of each file that passed."""


def unheard(_told: object) -> None:
    """For nobody who listens."""
