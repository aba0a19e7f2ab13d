"""How an assignment ends: its result reaches the server, or the server is told why there is none."""

from collections.abc import Callable

from fedlens_edge_client.client.events import Event, RoundFailed, RoundRefused, RoundReported
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.engines import BundleUnusable, EngineError, NonFinite
from fedlens_edge_client.errors import BadAnswer, NoKnownClass, PassFailed, Refused
from fedlens_edge_client.storage.disk import Worker
from fedlens_edge_client.storage.outbox import Outbox, Result
from fedlens_proto import wire
from fedlens_proto.errors import ProtoError
from fedlens_proto.v1 import assignment_pb2, update_pb2

MAX_DETAIL_CHARACTERS = 1000


class Delivery:
    """Hands results and failures of one client to its server."""

    def __init__(self, transport: Transport, outbox: Outbox, disk: Worker, emit: Callable[[Event], None]) -> None:
        """`disk` is where the outbox is read and written; `emit` takes how each assignment ended."""
        self._transport = transport
        self._outbox = outbox
        self._disk = disk
        self._emit = emit

    async def waiting(self) -> Result | None:
        """The oldest result that the server does not have yet."""
        return await self._disk.run(self._outbox.first)

    async def deliver(self, result: Result) -> RoundReported | RoundRefused:
        """Send a result; it has left the outbox when this returns.

        Raises:
            Refused: The server does not know this client.
            BadAnswer: The receipt is for other bytes.
        """
        outcome: RoundReported | RoundRefused
        try:
            if result.answer == assignment_pb2.ANSWER_EVALUATION:
                receipt = await self._transport.put_evaluation(result.task, result.round_number, result.header)
            else:
                receipt = await self._transport.put_update(result.task, result.round_number, result.header, result.blob)
        except Refused as refusal:
            if refusal.code == "unauthorised":
                raise
            await self._disk.run(self._outbox.refused, result)
            outcome = RoundRefused(result.task, result.round_number, refusal.code, refusal.reason)
        else:
            if receipt.body_sha256 != result.body_sha256:
                raise BadAnswer(
                    f"task {result.task}, round {result.round_number}: the receipt is for a body with digest "
                    f"{receipt.body_sha256.hex()}, sent was {result.body_sha256.hex()}"
                )
            outcome = result.reported()
            await self._disk.run(self._outbox.delivered, result)
        self._emit(outcome)
        return outcome

    async def give_up(
        self, assignment: assignment_pb2.Assignment, failure: PassFailed | EngineError | ProtoError | Refused
    ) -> RoundFailed:
        """Tell the server that there will be no result, and why.

        Raises:
            Refused: The server does not know this client.
        """
        reason, detail = _reason_of(failure)
        request = update_pb2.FailureRequest(protocol=wire.PROTOCOL, reason=reason, detail=detail)
        try:
            await self._transport.report_failure(assignment.task, assignment.round, request)
        except Refused as refusal:
            if refusal.code == "unauthorised":
                raise
        name = update_pb2.FailureReason.Name(reason).removeprefix("FAILURE_REASON_").lower()
        advice = failure.advice if isinstance(failure, NoKnownClass) else ""
        outcome = RoundFailed(assignment.task, assignment.round, name, detail, advice)
        self._emit(outcome)
        return outcome


def _reason_of(
    failure: PassFailed | EngineError | ProtoError | Refused,
) -> tuple[update_pb2.FailureReason, str]:
    detail = str(failure)[:MAX_DETAIL_CHARACTERS]
    match failure:
        case PassFailed():
            return failure.reason, detail
        case BundleUnusable() | ProtoError():
            return update_pb2.FAILURE_REASON_BUNDLE, detail
        case NonFinite():
            return update_pb2.FAILURE_REASON_NON_FINITE, detail
        case EngineError():
            return update_pb2.FAILURE_REASON_UNSUPPORTED, detail
        case _:
            return update_pb2.FAILURE_REASON_INTERNAL, detail
