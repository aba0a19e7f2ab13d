"""Reasons for which a client waits, for people: reported at once, and repeated every half minute."""

import time
from collections.abc import Callable

from fedlens_edge_client.client.events import Waiting

REMIND_S = 30.0

REASONS = {
    "population": "the task starts when enough clients have enrolled",
    "next_round": "this client's part of the round is done, or the round has other members",
    "phase": "the method has nothing for this client in this phase",
    "no_task": "there is no task for this client",
    "superseded": "another process uses this client's identity; end one of them",
    "busy": "the server holds as many polls as it can",
    "stopping": "the server is stopping; it will be back",
    "rest": "others go first",
    "not_eligible": "the task does not take this client",
    "sits_out": "an update of this client was not usable; it takes part again later",
    "paused": "the operator has paused the task",
    "not_before": "the server asked for a pause, which an earlier run has begun",
}
"""Texts by the reason of `events.Waiting`."""


def described(event: Waiting) -> str:
    """The reason of a wait, in words."""
    text = REASONS.get(event.reason, event.reason)
    return f"{text}: {event.detail}" if event.detail else text


class Reminder:
    """Reports the reason for a wait."""

    def __init__(self, tell: Callable[[str, float], None], now: Callable[[], float] = time.monotonic) -> None:
        """`tell` takes the reason and the seconds that it has lasted, 0 the first time."""
        self._tell = tell
        self._now = now
        self._reason: str | None = None
        self._since = self._told = 0.0

    def waits(self, reason: str) -> None:
        """Report the reason, unless it was reported less than half a minute ago."""
        if reason != self._reason:
            self._reason, self._since = reason, self._now()
        elif self._now() - self._told < REMIND_S:
            return
        self._told = self._now()
        self._tell(reason, self._told - self._since)

    def goes_on(self) -> None:
        """Note the end of the wait, so that the next reason is reported at once."""
        self._reason = None
