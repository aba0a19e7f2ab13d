"""Timings: how often something took how many seconds, in the form of a histogram.

Each is written by one thread at a time, so it needs no lock, and a check-in can afford several.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Timings:
    """Counts of timings by their upper bound."""

    __slots__ = ("_bounds", "_counts", "seconds")

    def __init__(self, bounds: Sequence[float] = BOUNDS) -> None:
        """Nothing was timed yet; `bounds` ascend."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.seconds += seconds

    def cumulative(self) -> list[tuple[float, int]]:
        """By bound, the last one infinite, the number of timings up to it."""
        counts, total = self._counts.copy(), 0
        found = []
        for bound, count in zip((*self._bounds, inf), counts, strict=True):
            total += count
            found.append((bound, total))
        return found
