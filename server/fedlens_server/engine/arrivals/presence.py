"""Clients that were seen lately, counted without looking at each."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from fedlens_server.engine.enrolled import Profile

BUCKET_S = 60.0
# What is stored may be this much older than what is known here.
SAVED_EVERY_S = 3600.0
Suits = Callable[[Profile], bool]


def anyone(_: Profile) -> bool:
    """Whoever it is, as an argument of `Presence.count`."""
    return True


class _Mark(NamedTuple):
    """One object for all clients of a profile that were last seen in one minute, to save memory."""

    minute: int
    profile: Profile


class Presence:
    """The last time at which each client was seen, to the minute; counted by profile, as `Enrolled` counts."""

    def __init__(self) -> None:
        """Nobody was seen yet."""
        self._last: dict[bytes, _Mark] = {}
        self._saved: dict[bytes, _Mark] = {}
        self._unsaved: set[bytes] = set()
        self._counts: Counter[_Mark] = Counter()
        self._marks: dict[_Mark, _Mark] = {}
        self._totals: dict[tuple[float, Suits], tuple[int, int]] = {}  # the oldest minute of the time, the count
        self._guard = threading.Lock()  # clients check in on one thread and are forgotten and banned on another

    def saw(self, client: bytes, profile: Profile, now: float) -> None:
        """Note that a client is here, `now` by `Clock.elapsed`."""
        mark = _Mark(int(now // BUCKET_S), profile)
        if self._last.get(client) == mark:
            return
        with self._guard:
            self._put(client, mark)
            saved = self._saved.get(client)
            if saved is None or mark.minute - saved.minute >= SAVED_EVERY_S / BUCKET_S:
                self._unsaved.add(client)

    def changed(self, client: bytes, profile: Profile) -> None:
        """Count a client, where it was seen, by another profile from now on."""
        with self._guard:
            if client in self._last:
                self._put(client, _Mark(self._last[client].minute, profile))

    def restore(self, client: bytes, profile: Profile, when: float) -> None:
        """Take from the database when a client was last seen, by `Clock.elapsed`, before it is seen again."""
        self._put(client, _Mark(int(when // BUCKET_S), profile))
        self._saved[client] = self._last[client]

    def _put(self, client: bytes, mark: _Mark) -> None:
        before = self._last.get(client)
        self._last[client] = self._marks.setdefault(mark, mark)
        self._counts[mark] += 1
        if before is not None:
            self._remove(before)
        for (within_s, suits), (oldest, total) in list(self._totals.items()):
            gained = mark.minute >= oldest and suits(mark.profile)
            lost = before is not None and before.minute >= oldest and suits(before.profile)
            if gained != lost:
                self._totals[within_s, suits] = oldest, total + gained - lost

    def _remove(self, mark: _Mark) -> None:
        self._counts[mark] -= 1
        if not self._counts[mark]:
            del self._counts[mark], self._marks[mark]

    def take_unsaved(self) -> dict[bytes, float]:
        """The clients whose stored time is old, with the time to store, by `Clock.elapsed`; counts as stored."""
        with self._guard:
            taken, self._unsaved = self._unsaved, set()
            self._saved.update((client, self._last[client]) for client in taken)
            return {client: self._last[client].minute * BUCKET_S for client in taken}

    def last_seen(self, client: bytes) -> float | None:
        """When a client was last seen, to the minute, by `Clock.elapsed`; None: never."""
        mark = self._last.get(client)
        return None if mark is None else mark.minute * BUCKET_S

    def forget(self, client: bytes) -> None:
        """Forget a client."""
        with self._guard:
            mark = self._last.pop(client, None)
            self._saved.pop(client, None)
            self._unsaved.discard(client)
            if mark is not None:
                self._remove(mark)
                self._totals.clear()

    def count(self, now: float, within_s: float, suits: Suits = anyone) -> int:
        """The number of clients that were seen in the last `within_s` seconds and whose profile suits."""
        oldest = int((now - within_s) // BUCKET_S)
        known = self._totals.get((within_s, suits))
        if known is not None and known[0] == oldest:
            return known[1]
        with self._guard:
            total = sum(count for mark, count in self._counts.items() if mark.minute >= oldest and suits(mark.profile))
            # Totals of an earlier minute go, and with them those of tasks that are no more.
            current = {key: each for key, each in self._totals.items() if each[0] == int((now - key[0]) // BUCKET_S)}
            self._totals = current | {(within_s, suits): (oldest, total)}
        return total
