"""A transport to a server that takes everything, for what wraps transports."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

from fedlens_edge_client.client.transport import Blobs
from fedlens_proto.v1 import assignment_pb2, check_in_pb2, enrolment_pb2, update_pb2


async def at_once() -> None:
    """Responses do not wait."""


class RecordingTransport:
    """Notes the calls, and the bodies of updates and failures.

    Check-ins and updates last until `work` and `takes_updates` let them end; `forgetful` servers give a new receipt
    each time.
    """

    def __init__(
        self,
        *,
        work: Callable[[], Awaitable[object]] = at_once,
        takes_updates: Callable[[], Awaitable[object]] = at_once,
        forgetful: bool = False,
    ) -> None:
        self.calls: list[str] = []
        self.bodies: list[bytes] = []
        self._work, self._takes_updates, self._forgetful = work, takes_updates, forgetful

    async def enrol(self, token: str, capabilities: enrolment_pb2.Capabilities) -> enrolment_pb2.EnrolResponse:
        return enrolment_pb2.EnrolResponse(role=enrolment_pb2.CLIENT_ROLE_TRAINER)

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        self.calls.append("check-in")
        await self._work()
        given = assignment_pb2.Assignment(task=1, round=2, time_left_ms=1500)
        return check_in_pb2.CheckInResponse(assignment=given)

    async def fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        raise AssertionError("no test fetches anything")

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        self.calls.append("update begins")
        await self._takes_updates()
        self.calls.append("update ends")
        parts = [await asyncio.to_thread(b.read_bytes) if isinstance(b, Path) else b for b in blobs]
        self.bodies.append(b"".join([header, *parts]))
        salt = bytes([len(self.bodies)]) if self._forgetful else b""
        return update_pb2.Receipt(body_sha256=sha256(self.bodies[-1] + salt).digest())

    async def put_evaluation(self, task: int, round_number: int, header: bytes) -> update_pb2.Receipt:
        return await self.put_update(task, round_number, header, ())

    async def report_failure(self, task: int, round_number: int, request: update_pb2.FailureRequest) -> None:
        self.bodies.append(request.SerializeToString())

    async def forget(self) -> enrolment_pb2.ForgetResponse:
        return enrolment_pb2.ForgetResponse()

    async def close(self) -> None:
        pass
