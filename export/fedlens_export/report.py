"""Progress of an export: its stages, and the difference between each file and the model."""

from collections.abc import Callable
from dataclasses import dataclass

from fedlens_export.programs.pte_program import Delegation
from fedlens_proto.v1 import manifest_pb2 as pb


@dataclass(frozen=True)
class FileReport:
    """A file of a program that passed its comparison with the model.

    Attributes:
        program: Name of the program.
        format: Format of the file.
        size: Bytes.
        difference: Largest difference for seeded inputs, measured as `parity.TOLERANCE` says; None if no installed
            package runs the file.
        allowed: Largest allowed difference, in words; None likewise.
        after_epoch: Largest difference of the weights after one epoch, at most `parity.TOLERANCE`; only for `step` of
            a frozen backbone's head.
        delegation: For a `.pte`, the operators that XNNPACK and portable kernels run.
    """

    program: str
    format: pb.ProgramFormat
    size: int
    difference: float | None
    allowed: str | None = None
    after_epoch: float | None = None
    delegation: Delegation | None = None


OnStage = Callable[[str], None]
"""Receives one line for each stage."""

OnFile = Callable[[FileReport], None]
"""Receives a report on each file that passed."""


def unheard(_told: object) -> None:
    """Ignore a report."""
