"""Why a client waits, for people: said at once, and every half minute again for as long as it lasts."""

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
"""By the reason of `events.Waiting`."""


class Reminder:
    """Says why somebody waits."""

    def __init__(self, tell: Callable[[str, float], None], now: Callable[[], float] = time.monotonic) -> None:
        """`tell` takes the reason, and for how many seconds it has lasted: 0 the first time."""
        self._tell = tell
        self._now = now
        self._reason: str | None = None
        self._since = self._told = 0.0

    def waits(self, reason: str) -> None:
        """Say so, unless the same was said less than half a minute ago."""
        if reason != self._reason:
            self._reason, self._since = reason, self._now()
        elif self._now() - self._told < REMIND_S:
            return
        self._told = self._now()
        self._tell(reason, self._told - self._since)

    def goes_on(self) -> None:
        """Nobody waits: whatever the next reason is, it is said at once."""
        self._reason = None
