"""The clock: the only source of time in the server."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The server's source of time."""

    def now(self) -> float:
        """Seconds since the epoch, for what people read; it jumps when the machine's clock is set."""
        ...

    def elapsed(self) -> float:
        """Seconds since some moment before the server's start, for all durations; it never jumps."""
        ...

    async def sleep_until(self, when: float) -> None:
        """Return when `elapsed()` has reached `when`."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def elapsed(self) -> float:
        """Seconds by the machine's monotonic clock."""
        return time.monotonic()

    async def sleep_until(self, when: float) -> None:
        """Return when `elapsed()` has reached `when`."""
        while (left := when - self.elapsed()) > 0:  # noqa: ASYNC110  (a clock cannot be awaited)
            await asyncio.sleep(left)
