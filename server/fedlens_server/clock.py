"""Time, which enters the server through here alone."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Where the server takes the time from."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    async def sleep_until(self, when: float) -> None:
        """Return when `now()` has reached `when`."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep_until(self, when: float) -> None:
        """Return when `now()` has reached `when`."""
        while (left := when - self.now()) > 0:  # noqa: ASYNC110  (a clock can be awaited in no other way)
            await asyncio.sleep(left)
