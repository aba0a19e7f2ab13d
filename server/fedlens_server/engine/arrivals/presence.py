"""Clients that were seen lately, counted without looking at each."""

import threading
from collections import Counter
from collections.abc import Collection, Iterator

BUCKET_S = 60.0
# What is stored may be this much older than what is known here.
SAVED_EVERY_S = 3600.0


class Presence:
    """The last time at which each client was seen, to the minute."""

    def __init__(self) -> None:
        """Nobody was seen yet."""
        self._last: dict[bytes, int] = {}
        self._counts: Counter[int] = Counter()  # clients by the minute in which they were last seen
        self._minutes: dict[int, int] = {}  # of `_counts`: one object for all clients of a minute, to save memory
        self._totals: dict[float, tuple[int, int]] = {}  # by length of time: its oldest minute, the count
        self._guard = threading.Lock()  # clients check in on one thread and are forgotten and banned on another

    def saw(self, client: bytes, now: float) -> None:
        """Note that a client is here, `now` by `Clock.elapsed`."""
        bucket = int(now // BUCKET_S)
        if self._last.get(client) == bucket:
            return
        with self._guard:
            before = self._put(client, bucket)
            for within_s, (oldest, total) in list(self._totals.items()):
                if bucket >= oldest and (before is None or before < oldest):
                    self._totals[within_s] = oldest, total + 1

    def restore(self, client: bytes, when: float) -> None:
        """Take from the database when a client was last seen, by `Clock.elapsed`, before it is seen again."""
        self._put(client, int(when // BUCKET_S))

    def _put(self, client: bytes, bucket: int) -> int | None:
        bucket = self._minutes.setdefault(bucket, bucket)
        before = self._last.get(client)
        self._last[client] = bucket
        self._counts[bucket] += 1
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
                self._minutes.pop(before, None)
        return before

    def since(self, oldest: float) -> Iterator[tuple[bytes, float]]:
        """The clients that were seen since then, and when, by `Clock.elapsed`."""
        times = ((client, bucket * BUCKET_S) for client, bucket in self._last.copy().items())
        return ((client, when) for client, when in times if when >= oldest)

    def last_seen(self, client: bytes) -> float | None:
        """When a client was last seen, to the minute, by `Clock.elapsed`; None: never."""
        bucket = self._last.get(client)
        return None if bucket is None else bucket * BUCKET_S

    def forget(self, client: bytes) -> None:
        """Forget a client."""
        with self._guard:
            bucket = self._last.pop(client, None)
            if bucket is not None:
                self._counts[bucket] -= 1
                self._totals.clear()

    def count(self, now: float, within_s: float) -> int:
        """The number of clients that were seen in the last `within_s` seconds."""
        oldest = int((now - within_s) // BUCKET_S)
        known = self._totals.get(within_s)
        if known is not None and known[0] == oldest:
            return known[1]
        with self._guard:
            total = sum(count for bucket, count in self._counts.items() if bucket >= oldest)
            self._totals[within_s] = oldest, total
        return total


class StoredPresence(Presence):
    """Presence of which the database has a copy that is not too old."""

    def __init__(self) -> None:
        """Nobody was seen yet."""
        super().__init__()
        self._saved: dict[bytes, int] = {}
        self._unsaved: set[bytes] = set()

    def _put(self, client: bytes, bucket: int) -> int | None:
        before = super()._put(client, bucket)
        saved = self._saved.get(client)
        if saved is None or bucket - saved >= SAVED_EVERY_S / BUCKET_S:
            self._unsaved.add(client)
        return before

    def restore(self, client: bytes, when: float) -> None:
        """As for others; it is stored already."""
        super().restore(client, when)
        self._unsaved.discard(client)
        self._saved[client] = self._last[client]

    def take_unsaved(self) -> dict[bytes, float]:
        """The clients whose stored time is old, with the time to store, by `Clock.elapsed`; counts as stored."""
        with self._guard:
            unsaved, self._unsaved = self._unsaved, set()
            # Who is not there is just being forgotten.
            taken = {client: self._last[client] for client in unsaved if client in self._last}
            self._saved.update(taken)
            return {client: bucket * BUCKET_S for client, bucket in taken.items()}

    def not_saved(self, clients: Collection[bytes]) -> None:
        """Have the times of clients stored after all, because what `take_unsaved` gave was not."""
        with self._guard:
            for client in self._last.keys() & clients:
                self._saved.pop(client, None)
                self._unsaved.add(client)

    def forget(self, client: bytes) -> None:
        """Forget a client."""
        super().forget(client)
        self._saved.pop(client, None)
        self._unsaved.discard(client)
