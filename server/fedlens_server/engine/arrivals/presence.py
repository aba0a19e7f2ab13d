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
        self._minutes: dict[int, int] = {}  # of `_counts`: one object for all clients of a minute, to save memory
        self._totals: dict[float, tuple[int, int]] = {}  # by length of time: its oldest minute, the count

    def saw(self, client: bytes, now: float) -> None:
        """Note that a client is here, `now` by `Clock.elapsed`."""
        bucket = self._minute(now)
        before = self._last.get(client)
        if before == bucket:
            return
        self._last[client] = bucket
        self._counts[bucket] += 1
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
                self._minutes.pop(before, None)
        for within_s, (oldest, total) in list(self._totals.items()):
            if bucket >= oldest and (before is None or before < oldest):
                self._totals[within_s] = oldest, total + 1
        saved = self._saved.get(client)
        if saved is None or bucket - saved >= SAVED_EVERY_S / BUCKET_S:
            self._unsaved.add(client)

    def restore(self, client: bytes, when: float) -> None:
        """Take from the database when a client was last seen, by `Clock.elapsed`, before it is seen again."""
        self._saved[client] = self._last[client] = bucket = self._minute(when)
        self._counts[bucket] += 1

    def take_unsaved(self) -> dict[bytes, float]:
        """The clients whose stored time is old, with the time to store, by `Clock.elapsed`; counts as stored."""
        taken, self._unsaved = self._unsaved, set()
        for client in taken:
            self._saved[client] = self._last[client]
        return {client: self._last[client] * BUCKET_S for client in taken}

    def last_seen(self, client: bytes) -> float | None:
        """When a client was last seen, to the minute, by `Clock.elapsed`; None: never."""
        bucket = self._last.get(client)
        return None if bucket is None else bucket * BUCKET_S

    def forget(self, client: bytes) -> None:
        """Forget a client."""
        bucket = self._last.pop(client, None)
        self._saved.pop(client, None)
        self._unsaved.discard(client)
        if bucket is not None:
            self._counts[bucket] -= 1
            self._totals.clear()

    def count(self, now: float, within_s: float) -> int:
        """The number of clients that were seen in the last `within_s` seconds."""
        oldest = int((now - within_s) // BUCKET_S)
        known = self._totals.get(within_s)
        if known is not None and known[0] == oldest:
            return known[1]
        total = sum(count for bucket, count in self._counts.copy().items() if bucket >= oldest)
        self._totals[within_s] = oldest, total
        return total

    def _minute(self, when: float) -> int:
        bucket = int(when // BUCKET_S)
        return self._minutes.setdefault(bucket, bucket)
