"""A limit on the lines of each kind: in each minute the first ones pass, and one line counts the rest."""

from collections.abc import Hashable
from dataclasses import dataclass, field

WINDOW_S = 60.0
_MOST_ADDRESSES = 10_000


@dataclass
class _Window:
    began: float
    passed: int = 0
    kept_back: int = 0
    addresses: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class KeptBack:
    """The lines of a kind that a minute has kept back, and the number of addresses that they came from."""

    kind: Hashable
    lines: int
    addresses: int
    seconds: float

    def __str__(self) -> str:
        """The sentence that stands for them."""
        places = ""
        if self.addresses:
            least = "at least " if self.addresses >= _MOST_ADDRESSES else ""
            places = f" from {least}{self.addresses:,} address{'es' if self.addresses > 1 else ''}"
        return f"... and {self.lines:,} more of this kind{places} in the last {self.seconds:.0f} s"


class RateLimits:
    """The kinds of the last minute; not safe for threads. Kinds must be few: each is remembered for a minute."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._windows: dict[Hashable, _Window] = {}

    @property
    def keep_back(self) -> bool:
        """True while lines have been kept back that `over` has not told of."""
        return any(window.kept_back for window in self._windows.values())

    def admits(self, kind: Hashable, most: int, now: float, address: str = "") -> bool:
        """Tell whether a line may be written: it is among the first `most` of its kind in this minute."""
        window = self._windows.setdefault(kind, _Window(now))
        if window.passed < most:
            window.passed += 1
            return True
        window.kept_back += 1
        if address and len(window.addresses) < _MOST_ADDRESSES:
            window.addresses.add(address)
        return False

    def over(self, now: float, *, all_of_them: bool = False) -> list[KeptBack]:
        """End the minutes that are over, or all; returns what they kept back."""
        ended = {k: w for k, w in self._windows.items() if all_of_them or now - w.began >= WINDOW_S}
        for kind in ended:
            del self._windows[kind]
        return [
            KeptBack(kind, window.kept_back, len(window.addresses), now - window.began)
            for kind, window in ended.items()
            if window.kept_back
        ]
