"""Clients that were seen lately, counted without looking at each."""

from collections import Counter

BUCKET_S = 60.0
# What is stored may be this much older than what is known here.
SAVED_EVERY_S = 3600.0


class Presence:
    """The last time at which each client was seen, to the minute."""

    def __init__(self) -> None:
        """Nobody was seen yet."""
        self._last: dict[bytes, int] = {}
        self._saved: dict[bytes, int] = {}
        self._unsaved: set[bytes] = set()
        self._counts: Counter[int] = Counter()  # clients by the minute in which they were last seen

    def saw(self, client: bytes, now: float) -> None:
        """Note that a client is here, `now` by `Clock.elapsed`."""
        bucket = int(now // BUCKET_S)
        before = self._last.get(client)
        if before == bucket:
            return
        self._last[client] = bucket
        self._counts[bucket] += 1
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        saved = self._saved.get(client)
        if saved is None or bucket - saved >= SAVED_EVERY_S / BUCKET_S:
            self._unsaved.add(client)

    def restore(self, client: bytes, when: float) -> None:
        """Take from the database when a client was last seen, by `Clock.elapsed`."""
        self._saved[client] = int(when // BUCKET_S)
        self.saw(client, when)

    def take_unsaved(self) -> dict[bytes, float]:
        """The clients whose stored time is old, with the time to store, by `Clock.elapsed`; counts as stored."""
        taken, self._unsaved = self._unsaved, set()
        self._saved |= {client: self._last[client] for client in taken}
        return {client: self._last[client] * BUCKET_S for client in taken}

    def count(self, now: float, within_s: float) -> int:
        """The number of clients that were seen in the last `within_s` seconds."""
        oldest = (now - within_s) // BUCKET_S
        return sum(count for bucket, count in self._counts.copy().items() if bucket >= oldest)
