"""Repeated attempts at a request, with exponential waits and full jitter."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from fedlens_edge_client.errors import Unreachable

T = TypeVar("T")
OnRetry = Callable[[str, float, int], None]
_MOST_DOUBLINGS = 64


class TryAgain(Exception):
    """The same request may succeed later, or now if `at_once`; `after_s` is the shortest wait."""

    def __init__(self, reason: str, after_s: float = 0.0, *, at_once: bool = False) -> None:
        """`reason` is for people."""
        super().__init__(reason)
        self.after_s = after_s
        self.at_once = at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits between attempts: random, with an upper bound that doubles each time.

    Attributes:
        first_s: Upper bound of the first wait.
        most_s: Upper bound of every wait, in addition to the server's own.
        give_up_after_s: Time until `Unreachable` is raised; None never gives up.
    """

    first_s: float = 0.5
    most_s: float = 30.0
    give_up_after_s: float | None = None


async def repeat(attempt: Callable[[], Awaitable[T]], backoff: Backoff, on_retry: OnRetry | None = None) -> T:
    """Call `attempt` until it no longer raises `TryAgain`, and return its result.

    Args:
        attempt: Sends the request anew each time.
        backoff: The waits in between.
        on_retry: Called before each wait with the reason, the wait in seconds and the number of attempts so far.

    Raises:
        Unreachable: The time of `backoff` is over.
    """
    started = time.monotonic()
    number = 0
    while True:
        number += 1
        try:
            return await attempt()
        except TryAgain as error:
            wait_s = error.after_s
            # A request that may be repeated at once and fails again must not spin.
            if not error.at_once or number > 1:
                bound_s = backoff.first_s * 2 ** min(number - 1, _MOST_DOUBLINGS)
                wait_s += random.uniform(0.0, min(bound_s, backoff.most_s))
            spent_s = time.monotonic() - started
            if backoff.give_up_after_s is not None and spent_s + wait_s > backoff.give_up_after_s:
                raise Unreachable(f"given up after {number} attempts in {spent_s:.1f} s: {error}") from error
            if on_retry is not None:
                on_retry(str(error), wait_s, number)
            await asyncio.sleep(wait_s)
