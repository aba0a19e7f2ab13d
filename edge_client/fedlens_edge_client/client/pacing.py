"""How long a client waits before it checks in again: what the server says, within reason."""

import random

LONGEST_PAUSE_S = 3600.0
"""A server that says to come back in a month will have something else to say earlier."""

# A server that answers at once with "wait 0 ms" must not make a client spin.
_SHORTEST_POLL_S = 0.05
_LONGEST_OWN_PAUSE_S = 30.0


class Pacing:
    """Remembers how quickly a server has sent its client away, and slows the client down for that."""

    def __init__(self) -> None:
        """Nothing has been asked yet."""
        self._own_pause_s = 0.0
        self._was_quick = False

    def pause_s(self, retry_after_ms: int, held_s: float) -> float:
        """How long to wait now, in seconds.

        Args:
            retry_after_ms: What the server asks for.
            held_s: How long it took to answer.
        """
        asked_s = min(retry_after_ms / 1000, LONGEST_PAUSE_S)
        is_quick = asked_s + held_s < _SHORTEST_POLL_S
        if not is_quick:
            self._own_pause_s = 0.0
        elif self._was_quick:
            self._own_pause_s = min(max(2 * self._own_pause_s, 4 * _SHORTEST_POLL_S), _LONGEST_OWN_PAUSE_S)
        self._was_quick = is_quick
        # Clients that were told the same should not all come back at the same moment.
        return (asked_s + self._own_pause_s) * random.uniform(1.0, 1.1)
