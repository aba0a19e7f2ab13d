"""The pause before the next check-in: as the server asks, within limits, over the end of a process."""

import random
from collections.abc import Callable

from fedlens_edge_client.background import CancellableExecutor
from fedlens_edge_client.client.clock import Clock
from fedlens_edge_client.client.events import Event, Waiting
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_proto.v1 import check_in_pb2

LONGEST_PAUSE_S = 3600.0
"""Upper bound of the server's wish: a server that asks for a month may have work much earlier."""

# A server that answers at once with "wait 0 ms" must not make a client spin.
_SHORTEST_POLL_S = 0.05
_LONGEST_OWN_PAUSE_S = 30.0
# Shorter pauses are not worth a write to the disk.
_LEAST_KEPT_S = 5.0
_NOT_BEFORE = "not_before"  # in the state folder: seconds since the epoch


class Pacing:
    """Slows a client down if the server keeps sending it away at once."""

    def __init__(self) -> None:
        """Start without a slowdown."""
        self._own_pause_s = 0.0
        self._was_quick = False

    def pause_s(self, retry_after_ms: int, held_s: float) -> float:
        """The next pause, in seconds.

        Args:
            retry_after_ms: The server's wish.
            held_s: Time that the server took to respond.
        """
        asked_s = min(retry_after_ms / 1000, LONGEST_PAUSE_S)
        is_quick = asked_s + held_s < _SHORTEST_POLL_S
        if not is_quick:
            self._own_pause_s = 0.0
        elif self._was_quick:
            self._own_pause_s = min(max(2 * self._own_pause_s, 4 * _SHORTEST_POLL_S), _LONGEST_OWN_PAUSE_S)
        self._was_quick = is_quick
        # Clients with the same wait should not all return at the same moment.
        return (asked_s + self._own_pause_s) * random.uniform(1.0, 1.1)


class Pauses:
    """The pauses that the server asks for; one that was cut short goes on, in a new process too."""

    def __init__(
        self, folder: StateFolder, disk: CancellableExecutor, emit: Callable[[Event], None], clock: Clock
    ) -> None:
        """Keep long pauses in `folder`, and tell `emit` of all."""
        self._clock = clock
        self._folder = folder
        self._disk = disk
        self._emit = emit
        self._pacing = Pacing()
        self._may_be_cut_short = True  # by the end of an earlier process

    async def take(self, wait: check_in_pb2.Wait, held_s: float) -> None:
        """Wait as the server says in a response that took `held_s` seconds."""
        pause_s = self._pacing.pause_s(wait.retry_after_ms, held_s)
        if pause_s >= _LEAST_KEPT_S:
            self._may_be_cut_short = True
            await self._keep(self._clock.now() + pause_s)
        name = check_in_pb2.WaitReason.Name(wait.reason) if wait.reason in check_in_pb2.WaitReason.values() else "?"
        self._emit(Waiting(name.removeprefix("WAIT_REASON_").lower(), wait.retry_after_ms, wait.detail))
        await self._clock.sleep(pause_s)
        self._may_be_cut_short = False

    async def go_on(self) -> None:
        """Wait for the rest of a pause that an earlier process, or a cancelled call, has begun."""
        if not self._may_be_cut_short:
            return
        kept = await self._disk.run(self._folder.get, _NOT_BEFORE)
        now_s = self._clock.now()
        left_s = 0.0 if kept is None else float(kept) - now_s
        if left_s > LONGEST_PAUSE_S:
            # The clock was set back. Written, so that the next process does not wait for as long again.
            left_s = LONGEST_PAUSE_S
            await self._keep(now_s + left_s)
        if left_s > 0:
            self._emit(Waiting("not_before", round(1000 * left_s)))
            await self._clock.sleep(left_s)
        self._may_be_cut_short = False

    async def _keep(self, until_s: float) -> None:
        await self._disk.run(self._folder.set, _NOT_BEFORE, str(until_s).encode())
