"""The clock of a client's pauses."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A phone's clock; only emulated clients have another one than the machine's."""

    def now(self) -> float:
        """Seconds since the epoch; it jumps when the clock is set."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return so many seconds later, however the clock is set meanwhile."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Return so many seconds later."""
        await asyncio.sleep(seconds)
