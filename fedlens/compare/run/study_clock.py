"""A simulated clock that stands still while clients work."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

# Any fixed moment: no result of a study depends on the date.
START = 1_000_000_000.0


class StudyClock:
    """A `Clock` that its owner moves; for one event loop."""

    def __init__(self) -> None:
        """The time is `START`."""
        self._now = START
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self.on_sleep: Callable[[], None] = lambda: None

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._now

    calendar = elapsed = now

    async def sleep_until(self, when: float) -> None:
        """Return when `now()` reaches `when`."""
        if when > self._now:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._sleepers, (when, next(self._numbers), waiter))
            self.on_sleep()
            await waiter

    async def sleep(self, seconds: float) -> None:
        """Return `seconds` later."""
        await self.sleep_until(self._now + seconds)

    @property
    def sleeping(self) -> int:
        """The number of sleepers."""
        return sum(not waiter.done() for _, _, waiter in self._sleepers)

    def next_awake(self) -> float | None:
        """The earliest time for which a sleeper waits."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def jump(self, to: float) -> None:
        """Set the time to `to`, unless it is later already, and wake the sleepers whose time has come."""
        self._now = max(self._now, to)
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)
