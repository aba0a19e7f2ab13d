"""The pause before the next check-in: as the server asks, within limits."""

import random

LONGEST_PAUSE_S = 3600.0
"""Upper bound of the server's wish: a server that asks for a month may have work much earlier."""

# A server that answers at once with "wait 0 ms" must not make a client spin.
_SHORTEST_POLL_S = 0.05
_LONGEST_OWN_PAUSE_S = 30.0


class Pacing:
    """Slows a client down if the server keeps sending it away at once."""

    def __init__(self) -> None:
        """Start without a slowdown."""
        self._own_pause_s = 0.0
        self._was_quick = False

    def pause_s(self, retry_after_ms: int, held_s: float) -> float:
        """The next pause, in seconds.

        Args:
            retry_after_ms: The server's wish.
            held_s: Time that the server took to respond.
        """
        asked_s = min(retry_after_ms / 1000, LONGEST_PAUSE_S)
        is_quick = asked_s + held_s < _SHORTEST_POLL_S
        if not is_quick:
            self._own_pause_s = 0.0
        elif self._was_quick:
            self._own_pause_s = min(max(2 * self._own_pause_s, 4 * _SHORTEST_POLL_S), _LONGEST_OWN_PAUSE_S)
        self._was_quick = is_quick
        # Clients with the same wait should not all return at the same moment.
        return (asked_s + self._own_pause_s) * random.uniform(1.0, 1.1)
