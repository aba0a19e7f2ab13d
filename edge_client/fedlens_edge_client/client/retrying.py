"""Sending a request again: when, and when not any more."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from fedlens_edge_client.errors import Unreachable

T = TypeVar("T")
OnRetry = Callable[[str, float, int], None]


class TryAgain(Exception):
    """The same request may succeed: `after_s` is the least wait, `at_once` that none is needed."""

    def __init__(self, reason: str, after_s: float = 0.0, *, at_once: bool = False) -> None:
        """`reason` is for people."""
        super().__init__(reason)
        self.after_s = after_s
        self.at_once = at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How a request is tried again: waits grow exponentially, with full jitter.

    Attributes:
        first_s: Upper bound of the first wait.
        most_s: Upper bound of every wait, on top of what the server asks for.
        give_up_after_s: Then `Unreachable` is raised; None never gives up.
    """

    first_s: float = 0.5
    most_s: float = 30.0
    give_up_after_s: float | None = None


async def repeat(attempt: Callable[[], Awaitable[T]], backoff: Backoff, on_retry: OnRetry | None = None) -> T:
    """What `attempt` gives, called again for as long as it raises `TryAgain`.

    Args:
        attempt: Sends the request anew each time.
        backoff: How long to wait in between.
        on_retry: Called before each wait with the reason, the wait in seconds and the number of attempts so far.

    Raises:
        Unreachable: The time of `backoff` is over.
    """
    jittered = wait_random_exponential(multiplier=backoff.first_s, max=backoff.most_s)
    started = time.monotonic()

    def wait_s(call: RetryCallState) -> float:
        error = _error_of(call)
        # Who may repeat at once and still does not succeed would otherwise spin.
        own = 0.0 if error.at_once and call.attempt_number == 1 else float(jittered(call))
        return error.after_s + own

    def is_over(call: RetryCallState) -> bool:
        most = backoff.give_up_after_s
        return most is not None and time.monotonic() - started + call.upcoming_sleep > most

    def tell(call: RetryCallState) -> None:
        if on_retry is not None:
            on_retry(str(_error_of(call)), call.upcoming_sleep, call.attempt_number)

    def give_up(call: RetryCallState) -> T:
        spent = time.monotonic() - started
        raise Unreachable(f"given up after {call.attempt_number} attempts in {spent:.1f} s: {_error_of(call)}")

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(TryAgain),
        wait=wait_s,
        stop=is_over,
        before_sleep=tell,
        retry_error_callback=give_up,
    )
    return await retrying(attempt)


def _error_of(call: RetryCallState) -> TryAgain:
    error = call.outcome.exception() if call.outcome is not None else None
    assert isinstance(error, TryAgain)
    return error
