"""Stop a client between two of its steps, without its help.

A step of `check in -> fetch -> embed, local plan, outbox -> upload -> forget` ends where the next call to the server
begins, with all results on the disk. So a transport that makes no further call stops the client there.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Never, TypeVar

from fedlens_edge_client.client.transport import Blobs, Transport
from fedlens_edge_client.emulation.fleet.client_executor import ClientExecutor
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, update_pb2

# An upload that has begun may take this long to end; the outbox has it in any case.
UPLOAD_GRACE_S = 5.0

T = TypeVar("T")


class StoppableTransport:
    """A `Transport` that makes no further call once its fleet stops."""

    def __init__(self, inner: Transport, executor: ClientExecutor, stopping: asyncio.Future[None]) -> None:
        """`stopping` is done when the fleet stops; `executor` learns where a step ends."""
        self._inner = inner
        self._executor = executor
        self._stopping = stopping
        self._in_call = False
        self._quiet = asyncio.Event()
        executor.on_refused = self._quiet.set

    async def enrol(self, token: str, capabilities: enrolment_pb2.Capabilities) -> enrolment_pb2.EnrolResponse:
        """As the inner transport."""
        return await self._unless_stopping(self._inner.enrol(token, capabilities))

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """As the inner transport."""
        return await self._unless_stopping(self._inner.check_in(request))

    async def fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        """As the inner transport."""
        await self._unless_stopping(self._inner.fetch(sha256, into, max_bytes))

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        """As the inner transport; a call that has begun may end."""
        call = self._inner.put_update(task, round_number, header, blobs)
        return await self._unless_stopping(call, UPLOAD_GRACE_S)

    async def put_evaluation(self, task: int, round_number: int, header: bytes) -> update_pb2.Receipt:
        """As the inner transport; a call that has begun may end."""
        return await self._unless_stopping(self._inner.put_evaluation(task, round_number, header), UPLOAD_GRACE_S)

    async def report_failure(self, task: int, round_number: int, request: update_pb2.FailureRequest) -> None:
        """As the inner transport; a call that has begun may end."""
        await self._unless_stopping(self._inner.report_failure(task, round_number, request), UPLOAD_GRACE_S)

    async def forget(self) -> enrolment_pb2.ForgetResponse:
        """As the inner transport."""
        return await self._unless_stopping(self._inner.forget())

    async def close(self) -> None:
        """Close the inner transport; also while stopping."""
        self._quiet.set()  # a client that has gone makes no further call
        await self._inner.close()

    async def settle(self, client: asyncio.Task[None]) -> None:
        """End the client once its fleet stops, as soon as all its results are on its disk."""
        self._executor.stop_starting()
        if self._in_call or self._executor.has_begun:
            client.add_done_callback(lambda _: self._quiet.set())
            await self._quiet.wait()
        client.cancel()
        await asyncio.wait([client])

    async def _unless_stopping(self, call: Coroutine[Any, Any, T], grace_s: float = 0.0) -> T:
        self._executor.has_begun = False
        if self._stopping.done():
            call.close()
            return await self._never()
        task = asyncio.create_task(call)
        self._in_call = True
        try:
            either: tuple[asyncio.Future[Any], ...] = (task, self._stopping)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and grace_s:
                await asyncio.wait([task], timeout=grace_s)
            if task.done():
                if grace_s:
                    # The client notes the receipt before the next call, even while the fleet stops.
                    self._executor.has_begun = True
                return task.result()
        finally:
            self._in_call = False
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        return await self._never()

    async def _never(self) -> Never:
        self._quiet.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a stopped client is cancelled, never resumed")
