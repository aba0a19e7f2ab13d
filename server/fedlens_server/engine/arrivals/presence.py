"""Clients that were seen lately, counted without looking at each."""

from collections import Counter

BUCKET_S = 60.0


class Presence:
    """The last time at which each client was seen, to the minute."""

    def __init__(self) -> None:
        """Nobody was seen yet."""
        self._last: dict[bytes, int] = {}
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

    def count(self, now: float, within_s: float) -> int:
        """The number of clients that were seen in the last `within_s` seconds."""
        oldest = (now - within_s) // BUCKET_S
        return sum(count for bucket, count in self._counts.copy().items() if bucket >= oldest)
