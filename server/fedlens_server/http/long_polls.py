"""Check-ins held open until there is work: one a client, capped in time and in number.

The time that a request is held runs on the event loop's own clock, as every network timeout does; rounds have another
clock.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Set

from fedlens_proto.v1 import check_in_pb2
from fedlens_server.engine.arrivals.places import Places
from fedlens_server.telemetry import events

BUSY_RETRY_MS = 5_000
# A stopping server has those that it lets go come back so many a second, and not before another may lead.
STOPPING_RETRY_MS, STOPPING_A_SECOND = 2_000, 500
_LONG_HOLD_MS = 1_000
Ask = Callable[[], check_in_pb2.CheckInResponse]


class Polls:
    """All check-ins that are held now."""

    def __init__(self, max_polls: int, max_hold_ms: int) -> None:
        """At most `max_polls` at a time, each for at most `max_hold_ms`."""
        self._max_polls = max_polls
        self._max_hold_ms = max_hold_ms
        self._held: dict[bytes, _Poll] = {}
        self._stopping_ms: tuple[int, int] | None = None  # the least and the most that is told; None: it goes on

    def __len__(self) -> int:
        """The number of check-ins that are held."""
        return len(self._held)

    async def respond(
        self, client: bytes, request: check_in_pb2.CheckInRequest, ask: Ask, places: Places
    ) -> check_in_pb2.CheckInResponse:
        """The response of `ask`, once that is more than a wait, or the time is over.

        Args:
            client: The client; an older poll of it is ended.
            request: Names the task and the longest time to hold.
            ask: Called at once, and again after each change; an error of it ends the poll.
            places: Asked for a place while the client has none.
        """
        if older := self._held.pop(client, None):
            older.end(check_in_pb2.WAIT_REASON_SUPERSEDED)
        response = ask()
        if response.WhichOneof("result") == "wait" and (decided := places.ask(client, request)) is not None:
            await asyncio.wrap_future(decided)
            response = ask()
        hold_ms = min(request.hold_ms, self._max_hold_ms)
        if response.WhichOneof("result") != "wait" or hold_ms == 0:
            return response
        if self._stopping_ms is not None:
            return _wait(response, check_in_pb2.WAIT_REASON_STOPPING, self._spread_ms())
        if len(self._held) >= self._max_polls:
            return _wait(response, check_in_pb2.WAIT_REASON_BUSY, BUSY_RETRY_MS)
        places.hold(client, request)
        try:
            return await self._hold(client, request.task, hold_ms, ask)
        finally:
            if client not in self._held:  # else a newer poll of the client looks on
                places.release(client)

    def wake(self, tasks: Set[int], concerns: Callable[[bytes], bool] = lambda client: True) -> None:
        """Ask again for all polls that one of these tasks may concern, of the clients that it `concerns`."""
        for client, poll in self._held.items():
            if (poll.task == 0 or poll.task in tasks) and concerns(client):
                poll.bell.set()

    def wake_clients(self, clients: Iterable[bytes]) -> None:
        """Ask again for the polls of these clients."""
        for client in self._held.keys() & clients:  # goes through the fewer of the two
            self._held[client].bell.set()

    def stop(self) -> None:
        """Answer all polls now, and hold none any more."""
        self._stopping_ms = STOPPING_RETRY_MS, STOPPING_RETRY_MS + 1000 * len(self._held) // STOPPING_A_SECOND
        for poll in self._held.values():
            poll.end(check_in_pb2.WAIT_REASON_STOPPING)

    def _spread_ms(self) -> int:
        return random.randint(*(self._stopping_ms or (STOPPING_RETRY_MS, STOPPING_RETRY_MS)))

    async def _hold(self, client: bytes, task: int, hold_ms: int, ask: Ask) -> check_in_pb2.CheckInResponse:
        if older := self._held.get(client):  # it came while this one waited for its place
            older.end(check_in_pb2.WAIT_REASON_SUPERSEDED)
        self._held[client] = poll = _Poll(task)
        if (request := events.REQUEST.get()) is not None:
            request.held = True
        alarm = asyncio.get_running_loop().call_later(hold_ms / 1000, poll.expire)
        try:
            while True:
                await poll.bell.wait()
                poll.bell.clear()
                response = ask()
                if response.WhichOneof("result") != "wait":
                    return response
                if poll.reason is not None:
                    return _wait(response, poll.reason, self._spread_ms())
                if poll.expired:
                    if hold_ms >= _LONG_HOLD_MS:
                        # It has waited here; a pause now could only miss the opening of the next round.
                        response.wait.retry_after_ms = 0
                    return response
        finally:
            alarm.cancel()
            if self._held.get(client) is poll:
                del self._held[client]


class _Poll:
    def __init__(self, task: int) -> None:
        self.task = task
        self.reason: check_in_pb2.WaitReason | None = None
        self.expired = False
        self.bell = asyncio.Event()

    def end(self, reason: check_in_pb2.WaitReason) -> None:
        self.reason = reason
        self.bell.set()

    def expire(self) -> None:
        self.expired = True
        self.bell.set()


def _wait(
    response: check_in_pb2.CheckInResponse, reason: check_in_pb2.WaitReason, retry_after_ms: int
) -> check_in_pb2.CheckInResponse:
    response.wait.reason = reason
    response.wait.retry_after_ms = max(response.wait.retry_after_ms, retry_after_ms)
    return response
