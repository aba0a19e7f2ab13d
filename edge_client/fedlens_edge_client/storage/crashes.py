"""How often each bundle has ended the process that ran its programs, over restarts of the client."""

from collections.abc import Callable
from dataclasses import dataclass

from fedlens_edge_client.storage.state_folder import StateFolder

MAX_CRASHES = 20
FIRST_PAUSE_S = 60.0
LONGEST_PAUSE_S = 86_400.0


@dataclass(frozen=True)
class Crashes:
    """The crashes of each bundle, by its digest: another bundle of the same task begins at zero.

    Attributes:
        state: Keeps, for each, their number and the time before which the bundle does not run again.
        now: Seconds since the epoch.
    """

    state: StateFolder
    now: Callable[[], float]

    def refusal(self, bundle: bytes) -> str:
        """The reason not to run a bundle now; empty: it may run."""
        count, until_s = self._read(bundle)
        # A clock that was set back must not keep it out for longer than the pause.
        left_s = min(until_s - self.now(), _pause_s(count))
        return _text(bundle, count, left_s) if count >= MAX_CRASHES or left_s > 0 else ""

    def note(self, bundle: bytes) -> str:
        """Count a crash; a text that says what follows from it."""
        count = self._read(bundle)[0] + 1
        pause_s = _pause_s(count)
        self.state.set(_key(bundle), f"{count} {self.now() + pause_s}".encode())
        return _text(bundle, count, pause_s)

    def _read(self, bundle: bytes) -> tuple[int, float]:
        count, _, until = (self.state.get(_key(bundle)) or b"0 0").decode().partition(" ")
        return int(count), float(until)


def _key(bundle: bytes) -> str:
    return f"crashes {bundle.hex()}"


def _pause_s(count: int) -> float:
    return min(FIRST_PAUSE_S * 2.0 ** max(count - 1, 0), LONGEST_PAUSE_S)


def _text(bundle: bytes, count: int, left_s: float) -> str:
    times = "once" if count == 1 else f"{count} times"
    ended = f"bundle {bundle.hex()[:12]} has ended its process {times}"
    if count >= MAX_CRASHES:
        return f"{ended}, and does not run here again: export another bundle"
    return f"{ended}, and may run again in {-int(-left_s // 60)} min"
