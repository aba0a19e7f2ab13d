"""Members of a round that hold a place: counted, and let go when their time is over, without looking at each."""

import heapq
import threading
from math import inf


class HeldPlaces:
    """By member the time until which it holds its place, by `Clock.elapsed`; safe to use from several threads."""

    def __init__(self) -> None:
        """Nobody holds a place."""
        self._until: dict[bytes, float] = {}
        self._beside: set[bytes] = set()  # of them, those that take none of the round's places
        self._ends: list[tuple[float, bytes]] = []  # a heap, with times that no longer hold
        self._guard = threading.Lock()

    def hold(self, client: bytes, until: float, *, beside: bool) -> None:
        """Have a member hold a place until then, or, `beside`, work beside those of the round's places."""
        with self._guard:
            self._until[client] = until
            heapq.heappush(self._ends, (until, client))
            if beside:
                self._beside.add(client)

    def release(self, client: bytes) -> None:
        """Have a member hold its place no more."""
        with self._guard:
            self._release(client)

    def until(self, client: bytes) -> float:
        """The time until which a member holds its place; 0: it holds none."""
        return self._until.get(client, 0.0)

    def taken(self, now: float) -> int:
        """The number of the round's places that are held."""
        with self._guard:
            self._let_go(now)
            return len(self._until) - len(self._beside)

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
        self._until.pop(client, None)
        self._beside.discard(client)
