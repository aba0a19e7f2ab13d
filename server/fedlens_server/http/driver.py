"""The driver of rounds: closes and aggregates each when it is due, woken by changes and deadlines, never by polling."""

import asyncio
import logging
from collections.abc import Callable

from fedlens_server.engine import aggregation
from fedlens_server.engine.view import Federation, RoundKey

FAILURE_PAUSE_S = 5.0
_log = logging.getLogger(__name__)


class Driver:
    """Calls of `aggregation.advance` in threads, one a round at a time."""

    def __init__(self, federation: Federation) -> None:
        """Nothing runs before `start`."""
        self._federation = federation
        self._clock = federation.clock
        self._changed = asyncio.Event()
        self._stopping = False
        self._advancing: dict[RoundKey, asyncio.Task[None]] = {}
        self._not_before: dict[RoundKey, float] = {}
        self._unsubscribe: Callable[[], None] = lambda: None
        self._loop_task: asyncio.Task[None] | None = None

    def start(self, unsubscribe: Callable[[], None]) -> None:
        """Begin; `unsubscribe` is called when stopping."""
        self._unsubscribe = unsubscribe
        self._loop_task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """Look again at what is due."""
        self._changed.set()

    async def stop(self) -> None:
        """Return when nothing is being advanced any more."""
        self._stopping = True
        self._changed.set()
        if self._loop_task is not None:
            await self._loop_task
        if self._advancing:
            await asyncio.wait(self._advancing.values())
        self._unsubscribe()

    async def _run(self) -> None:
        while not self._stopping:
            self._changed.clear()
            now = self._clock.now()
            self._not_before = {key: when for key, when in self._not_before.items() if when > now}
            for key in aggregation.due(self._federation):
                if key not in self._advancing and key not in self._not_before:
                    self._advancing[key] = asyncio.create_task(self._advance(key))
            waits = [*self._not_before.values()]
            deadline = aggregation.next_deadline(self._federation)
            if deadline is not None and deadline > now:
                waits.append(deadline)
            await self._wait(min(waits, default=None))

    async def _wait(self, until: float | None) -> None:
        changed = asyncio.create_task(self._changed.wait())
        tasks: list[asyncio.Task[object]] = [changed]
        if until is not None:
            tasks.append(asyncio.create_task(self._clock.sleep_until(until)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _advance(self, key: RoundKey) -> None:
        try:
            await asyncio.to_thread(aggregation.advance, self._federation, key)
        except Exception:
            _log.exception(
                "round %d of task %d could not be advanced; next try in %g s", key.round, key.task, FAILURE_PAUSE_S
            )
            self._not_before[key] = self._clock.now() + FAILURE_PAUSE_S
        finally:
            del self._advancing[key]
            self._changed.set()
