"""The clock: the only source of time in the server."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

DAY_S = 86_400.0


class Clock(Protocol):
    """The server's source of time."""

    def now(self) -> float:
        """Seconds since the epoch, for what people read; it jumps when the machine's clock is set."""
        ...

    def calendar(self) -> float:
        """Seconds since the epoch by the calendar, where `now` may be an emulated time."""
        ...

    def elapsed(self) -> float:
        """Seconds since some moment before the server's start, for all durations; it never jumps."""
        ...

    async def sleep_until(self, when: float) -> None:
        """Return when `elapsed()` has reached `when`."""
        ...


class SystemClock:
    """The machine's clock."""

    _speed = 1.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def calendar(self) -> float:
        """Seconds since the epoch by the calendar."""
        return time.time()

    def elapsed(self) -> float:
        """Seconds by the machine's monotonic clock."""
        return self._speed * time.monotonic()

    async def sleep_until(self, when: float) -> None:
        """Return when `elapsed()` has reached `when`."""
        while (left := when - self.elapsed()) > 0:  # noqa: ASYNC110  (a clock cannot be awaited)
            await asyncio.sleep(left / self._speed)


class FastClock(SystemClock):
    """The machine's clock, sped up so that an hour lasts `hour_lasts_s` seconds, for fleets of emulated phones.

    It was right when the year began, so that all processes of a machine agree on the time.
    """

    def __init__(self, hour_lasts_s: float) -> None:
        """More than 0; 3600 for the machine's own time."""
        self._speed = 3600 / hour_lasts_s
        self._start = datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC).timestamp()

    def now(self) -> float:
        """Emulated seconds since the epoch."""
        return self._start + self._speed * (time.time() - self._start)
