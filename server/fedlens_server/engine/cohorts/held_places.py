"""Members of a round that hold a place: counted, and let go when their time is over, without looking at each."""

import heapq
import threading
from collections import Counter
from math import inf


class HeldPlaces:
    """By member the time until which it holds its place, by `Clock.elapsed`; safe to use from several threads."""

    def __init__(self) -> None:
        """Nobody holds a place."""
        self._since: dict[bytes, float] = {}
        self._until: dict[bytes, float] = {}
        self._bundles: dict[bytes, bytes] = {}  # of those that take one of the round's places, by digest
        self._taken: Counter[bytes] = Counter()  # of them, by bundle
        self._ends: list[tuple[float, bytes]] = []  # a heap, with times that no longer hold
        self._guard = threading.Lock()

    def hold(self, client: bytes, since: float | None, until: float, bundle: bytes | None) -> None:
        """Have a member with a bundle hold a place until then; None: it works beside those of the round's places.

        `since` is None where it is not known any more.
        """
        with self._guard:
            self._release(client)
            self._until[client] = until
            if since is not None:
                self._since[client] = since
            heapq.heappush(self._ends, (until, client))
            if bundle is not None:
                self._bundles[client] = bundle
                self._taken[bundle] += 1

    def release(self, client: bytes) -> None:
        """Have a member hold its place no more."""
        with self._guard:
            self._release(client)

    def since(self, client: bytes) -> float | None:
        """The time since which a member holds its place; None: it holds none, or that is not known."""
        return self._since.get(client)

    def until(self, client: bytes) -> float:
        """The time until which a member holds its place; 0: it holds none."""
        return self._until.get(client, 0.0)

    def taken(self, now: float) -> int:
        """The number of the round's places that are held."""
        with self._guard:
            self._let_go(now)
            return len(self._bundles)

    def taken_with(self, bundle: bytes, now: float) -> int:
        """The number of the round's places that are held by members with a bundle."""
        with self._guard:
            self._let_go(now)
            return self._taken[bundle]

    def next_end(self, after: float) -> float:
        """The first time behind `after` at which a place is held no more; infinite: there is none."""
        with self._guard:
            self._let_go(after)
            while self._ends and self._until.get(self._ends[0][1]) != self._ends[0][0]:
                heapq.heappop(self._ends)
            return self._ends[0][0] if self._ends else inf

    def _let_go(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            until, client = heapq.heappop(self._ends)
            if self._until.get(client) == until:
                self._release(client)

    def _release(self, client: bytes) -> None:
        self._since.pop(client, None)
        self._until.pop(client, None)
        bundle = self._bundles.pop(client, None)
        if bundle is not None:
            self._taken[bundle] -= 1
