"""Reasons for which a client waits, for people: reported at once, and repeated every half minute."""

import time
from collections.abc import Callable

REMIND_S = 30.0

REASONS = {
    "population": "the task starts when enough clients have enrolled",
    "next_round": "this client's part of the round is done, or the round has other members",
    "phase": "the method has nothing for this client in this phase",
    "no_task": "there is no task for this client",
    "superseded": "another process uses this client's identity; end one of them",
    "busy": "the server holds as many polls as it can",
    "stopping": "the server is stopping; it will be back",
}
"""Texts by the reason of `events.Waiting`."""


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
