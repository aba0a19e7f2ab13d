"""The end of an assignment: its result reaches the server, or the server learns the reason for its failure."""

from collections.abc import Callable
from dataclasses import dataclass

from fedlens_edge_client.background import CancellableExecutor
from fedlens_edge_client.client.events import Event, RoundFailed, RoundRefused, RoundReported
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.engines import BundleUnusable, EngineError, NonFinite
from fedlens_edge_client.errors import AssignmentFailed, BadResponse, NoKnownClass, Refused
from fedlens_edge_client.storage.outbox import Outbox, Result
from fedlens_edge_client.training.evaluation import Evaluation
from fedlens_proto import wire
from fedlens_proto.errors import ProtoError
from fedlens_proto.v1 import assignment_pb2, update_pb2

MAX_DETAIL_CHARACTERS = 1000
Failure = AssignmentFailed | EngineError | ProtoError | Refused


@dataclass(frozen=True)
class Delivery:
    """Sends results and failures of one client to its server.

    Attributes:
        transport: The connection to the server.
        outbox: The results that the server has not acknowledged yet.
        disk: The thread that reads and writes the outbox.
        emit: Called with the outcome of each assignment.
    """

    transport: Transport
    outbox: Outbox
    disk: CancellableExecutor
    emit: Callable[[Event], None]

    async def waiting(self) -> Result | None:
        """The oldest result without a receipt."""
        return await self.disk.run(self.outbox.first)

    async def deliver(self, result: Result) -> RoundReported | RoundRefused:
        """Send a result; it has left the outbox when this returns.

        Raises:
            Refused: The server does not know this client.
            BadResponse: The receipt is for other bytes.
        """
        outcome: RoundReported | RoundRefused
        try:
            if result.answer == assignment_pb2.ANSWER_EVALUATION:
                receipt = await self.transport.put_evaluation(result.task, result.round_number, result.header)
            else:
                receipt = await self.transport.put_update(result.task, result.round_number, result.header, result.blobs)
        except Refused as refusal:
            if refusal.code == "unauthorised":
                raise
            await self.disk.run(self.outbox.refused, result)
            outcome = RoundRefused(result.task, result.round_number, refusal.code, refusal.reason)
        else:
            if receipt.body_sha256 != result.body_sha256:
                raise BadResponse(
                    f"task {result.task}, round {result.round_number}: the receipt is for a body with digest "
                    f"{receipt.body_sha256.hex()}, sent was {result.body_sha256.hex()}"
                )
            outcome = _reported(result)
            await self.disk.run(self.outbox.delivered, result)
        self.emit(outcome)
        return outcome

    async def give_up(self, assignment: assignment_pb2.Assignment, failure: Failure) -> RoundFailed:
        """Tell the server that there will be no result, and the reason.

        Raises:
            Refused: The server does not know this client.
        """
        # Names of files may be no Unicode, which no message takes.
        told = str(failure).encode(errors="backslashreplace").decode()
        reason, detail = _reason_of(failure), told[:MAX_DETAIL_CHARACTERS]
        request = update_pb2.FailureRequest(protocol=wire.PROTOCOL, reason=reason, detail=detail)
        try:
            await self.transport.report_failure(assignment.task, assignment.round, request)
        except Refused as refusal:
            if refusal.code == "unauthorised":
                raise
        name = wire.word(update_pb2.FailureReason, reason)
        advice = failure.advice if isinstance(failure, NoKnownClass) else ""
        outcome = RoundFailed(assignment.task, assignment.round, name, detail, advice)
        self.emit(outcome)
        return outcome


def _reported(result: Result) -> RoundReported:
    header = update_pb2.UpdateHeader.FromString(result.header[wire.LENGTH.size :])
    return RoundReported(
        task=result.task,
        round_number=result.round_number,
        num_examples=header.num_examples,
        upload_bytes=len(result.header) + sum(blob.size for blob in header.uploads),
        evaluations={
            sums.label: Evaluation(sums.count, sums.correct, sums.loss, tuple(sums.confusion) or None)
            for sums in header.evaluations
        },
    )


def _reason_of(failure: Failure) -> update_pb2.FailureReason:
    match failure:
        case AssignmentFailed():
            return failure.reason
        case BundleUnusable() | ProtoError():
            return update_pb2.FAILURE_REASON_BUNDLE
        case NonFinite():
            return update_pb2.FAILURE_REASON_NON_FINITE
        case EngineError():
            return update_pb2.FAILURE_REASON_UNSUPPORTED
        case _:
            return update_pb2.FAILURE_REASON_INTERNAL
