"""The clock: the only source of time in the server."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The server's source of time."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    async def sleep_until(self, when: float) -> None:
        """Return when `now()` has reached `when`."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep_until(self, when: float) -> None:
        """Return when `now()` has reached `when`."""
        while (left := when - self.now()) > 0:  # noqa: ASYNC110  (a clock cannot be awaited)
            await asyncio.sleep(left)
