"""Stopping a client between two of its arrows, without its help.

An arrow of `check in -> fetch -> embed, local plan, outbox -> upload -> forget` ends where the next call to the server
begins. So a transport that holds every further call parks the client where all it has done is on its disk.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Never, TypeVar

from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.emulation.fleet.turns import Turns
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, update_pb2

# An upload that has begun when the fleet stops may end; the outbox has it anyway.
UPLOAD_GRACE_S = 5.0

T = TypeVar("T")


class ParkingTransport:
    """A `Transport` that makes no further call once its fleet stops."""

    def __init__(self, inner: Transport, turns: Turns, stopping: asyncio.Future[None]) -> None:
        """`stopping` is done when the fleet stops; `turns` is told where an arrow ends."""
        self._inner = inner
        self._turns = turns
        self._stopping = stopping
        self._in_call = False
        self._quiet = asyncio.Event()
        turns.on_refused = self._quiet.set

    async def enrol(self, token: str, capabilities: enrolment_pb2.Capabilities) -> enrolment_pb2.EnrolResponse:
        """As the inner transport."""
        return await self._unless_stopping(self._inner.enrol(token, capabilities))

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """As the inner transport."""
        return await self._unless_stopping(self._inner.check_in(request))

    async def fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        """As the inner transport."""
        await self._unless_stopping(self._inner.fetch(sha256, into, max_bytes))

    async def put_update(
        self, task: int, round_number: int, header: bytes, blob: bytes | Path | None
    ) -> update_pb2.Receipt:
        """As the inner transport; one that has begun may end."""
        call = self._inner.put_update(task, round_number, header, blob)
        return await self._unless_stopping(call, UPLOAD_GRACE_S)

    async def put_evaluation(self, task: int, round_number: int, header: bytes) -> update_pb2.Receipt:
        """As the inner transport; one that has begun may end."""
        return await self._unless_stopping(self._inner.put_evaluation(task, round_number, header), UPLOAD_GRACE_S)

    async def report_failure(self, task: int, round_number: int, request: update_pb2.FailureRequest) -> None:
        """As the inner transport; one that has begun may end."""
        await self._unless_stopping(self._inner.report_failure(task, round_number, request), UPLOAD_GRACE_S)

    async def forget(self) -> enrolment_pb2.ForgetResponse:
        """As the inner transport."""
        return await self._unless_stopping(self._inner.forget())

    async def close(self) -> None:
        """Close the inner transport; also while stopping."""
        await self._inner.close()

    async def settle(self, client: asyncio.Task[None]) -> None:
        """End the client, once its fleet stops, as soon as nothing is in hand that is not on its disk."""
        self._turns.hold()
        if self._in_call or self._turns.has_begun:
            client.add_done_callback(lambda _: self._quiet.set())
            await self._quiet.wait()
        client.cancel()
        await asyncio.wait([client])

    async def _unless_stopping(self, call: Coroutine[Any, Any, T], grace_s: float = 0.0) -> T:
        self._turns.start_afresh()
        if self._stopping.done():
            call.close()
            return await self._park()
        task = asyncio.create_task(call)
        self._in_call = True
        try:
            either: tuple[asyncio.Future[Any], ...] = (task, self._stopping)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and grace_s:
                await asyncio.wait([task], timeout=grace_s)
            if task.done():
                if grace_s:
                    # A receipt is noted before the next call, whether the fleet stops or not.
                    self._turns.carry_on()
                return task.result()
        finally:
            self._in_call = False
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        return await self._park()

    async def _park(self) -> Never:
        self._quiet.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a parked client is cancelled, never resumed")
