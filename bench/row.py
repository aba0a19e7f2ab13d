"""The result of a measure: one line of the table."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise


class Skipped(Exception):
    """A measure cannot be taken on this machine; the text says why."""


@dataclass(frozen=True)
class Sample:
    """Repeats of one quantity."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    def text(self, digits: int) -> str:
        """Median, and least to greatest where they differ."""
        low, high = min(self.values), max(self.values)
        spread = f" ({low:.{digits}f} - {high:.{digits}f})" if f"{low:.{digits}f}" != f"{high:.{digits}f}" else ""
        return f"{self.median:.{digits}f}{spread}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        measure: What was measured, with its size.
        unit: Of floor and measured.
        digits: Shown behind the point.
        floor: The least that the same work can cost, taken in the same run.
        floor_is: What was done to find the floor.
        measured: What FedLens needed.
        judged: The number that the target is about.
        judged_text: That number as people read it.
        target: `judged` is to be at most this, or with `at_least` no less.
        target_text: The target as people read it.
        note: Where the time or memory goes.
    """

    measure: str
    unit: str
    digits: int
    floor: Sample
    floor_is: str
    measured: Sample
    judged: float
    judged_text: str
    target: float
    target_text: str
    at_least: bool = False
    note: str = ""

    @property
    def is_met(self) -> bool:
        """Tell whether the target is reached."""
        return self.judged >= self.target if self.at_least else self.judged <= self.target


def against_floor(
    measure: str, floor: Sample, measured: Sample, most: float, floor_is: str, *, unit: str = "ms", note: str = ""
) -> Row:
    """A row whose target is a multiple of the floor."""
    ratio = measured.median / floor.median
    return Row(
        measure=measure,
        unit=unit,
        digits=1 if unit == "ms" else 3,
        floor=floor,
        floor_is=floor_is,
        measured=measured,
        judged=ratio,
        judged_text=f"{ratio:.2f}x",
        target=most,
        target_text=f"<= {most:g}x",
        note=note,
    )


def against_target(
    measure: str,
    floor: Sample,
    measured: Sample,
    target: float,
    floor_is: str,
    *,
    unit: str,
    digits: int,
    judged: float | None = None,
    judged_text: str | None = None,
    target_text: str | None = None,
    at_least: bool = False,
    note: str = "",
) -> Row:
    """A row whose target is a number of its own: the measured median in `unit`, if nothing else is `judged`."""
    value = measured.median if judged is None else judged
    return Row(
        measure=measure,
        unit=unit,
        digits=digits,
        floor=floor,
        floor_is=floor_is,
        measured=measured,
        judged=value,
        judged_text=f"{value:.{digits}f} {unit}" if judged_text is None else judged_text,
        target=target,
        target_text=f"{'>=' if at_least else '<='} {target:g} {unit}" if target_text is None else target_text,
        at_least=at_least,
        note=note,
    )


def against_more(
    measure: str,
    floor: Sample,
    measured: Sample,
    most: float,
    floor_is: str,
    *,
    unit: str,
    digits: int,
    note: str = "",
) -> Row:
    """A row whose target is how much more than the floor the measured median may be, in `unit`."""
    more = measured.median - floor.median
    return against_target(
        measure,
        floor,
        measured,
        most,
        floor_is,
        unit=unit,
        digits=digits,
        judged=more,
        judged_text=f"{more:.{digits}f} {unit} more",
        target_text=f"<= {most:g} {unit} more",
        note=note,
    )


def seconds(work: Callable[[], object]) -> float:
    """The time that `work` takes, in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(
    repeats: int, first: Callable[[], object], second: Callable[[], object], scale: float = 1.0
) -> tuple[Sample, Sample]:
    """Seconds times `scale` of both, one after the other, `repeats` times after one unmeasured run of each.

    Turns rather than blocks, so that a change of the machine's speed meets both alike.
    """
    first()
    second()
    pairs = [(seconds(first), seconds(second)) for _ in range(repeats)]
    return Sample(tuple(a * scale for a, _ in pairs)), Sample(tuple(b * scale for _, b in pairs))


def differences(moments: Sequence[float]) -> tuple[float, ...]:
    """The time from each moment to the next."""
    return tuple(b - a for a, b in pairwise(moments))
