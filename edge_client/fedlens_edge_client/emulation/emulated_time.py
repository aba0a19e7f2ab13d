"""Emulated time: clocks on which hours are short, and phones that come and go by a plan."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from fedlens_edge_client.client.clock import Clock
from fedlens_edge_client.emulation.presence import HOUR_S, PresencePlan

T = TypeVar("T")


class FastClock:
    """The machine's clock, sped up so that an hour lasts `hour_lasts_s` seconds.

    It was right when the year began, so that all processes of a machine agree on the time.
    """

    def __init__(self, hour_lasts_s: float) -> None:
        """More than 0; 3600 for the machine's own time."""
        self._speed = HOUR_S / hour_lasts_s
        self._start = datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC).timestamp()

    def now(self) -> float:
        """Emulated seconds since the epoch."""
        return self._start + self._speed * (time.time() - self._start)

    async def sleep(self, seconds: float) -> None:
        """Return so many emulated seconds later."""
        await asyncio.sleep(seconds / self._speed)


@dataclass(frozen=True)
class WrongClock:
    """A clock that is fast by `error_s` seconds."""

    right: Clock
    error_s: float

    def now(self) -> float:
        """Seconds since the epoch, by this clock."""
        return self.right.now() + self.error_s

    async def sleep(self, seconds: float) -> None:
        """As the clock that is right."""
        await self.right.sleep(seconds)


async def come_and_go(plan: PresencePlan, client: int, clock: Clock, attend: Callable[[Clock], Awaitable[T]]) -> T:
    """Call `attend` whenever a phone has come, until it returns.

    Args:
        plan: Of all phones.
        client: The phone's index in the plan.
        clock: Emulated time.
        attend: Takes part, with the phone's own clock; cancelled when the phone goes away or its clock is set anew. An
            error of it ends all.
    """
    while True:
        now = clock.now()
        hour = int(now // HOUR_S)
        if hour * HOUR_S + plan.seconds_there(client, hour) > now:
            attending = asyncio.ensure_future(attend(WrongClock(clock, plan.clock_error_s(client, hour))))
            leaving = asyncio.ensure_future(_leave(plan, client, hour, clock))
            try:
                await asyncio.wait([attending, leaving], return_when=asyncio.FIRST_COMPLETED)
            finally:
                attending.cancel()
                leaving.cancel()
                await asyncio.wait([attending, leaving])
            if not attending.cancelled():
                return attending.result()
            hour = leaving.result()
        await clock.sleep(max(0.0, (hour + 1) * HOUR_S - clock.now()))


async def _leave(plan: PresencePlan, client: int, hour: int, clock: Clock) -> int:
    """Return when a phone that is there in an hour goes away or its clock is set anew, with the hour that this ends."""
    while True:
        await clock.sleep(max(0.0, hour * HOUR_S + plan.seconds_there(client, hour) - clock.now()))
        stays = plan.seconds_there(client, hour) == HOUR_S and plan.seconds_there(client, hour + 1) > 0
        if not stays or plan.clock_error_s(client, hour + 1) != plan.clock_error_s(client, hour):
            return hour
        hour += 1
