"""Processes that are killed at given moments of their lives."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Death:
    """The moment at which a life ends.

    Attributes:
        step: What the client was about to do, or had just done; None: anything.
        count: The how-manieth time.
        later_s: So many seconds after that.
    """

    step: str | None = None
    count: int = 1
    later_s: float = 0.0


class Fate:
    """Kills a process when its time has come.

    Attributes:
        kill: Does it; by default to this process.
    """

    def __init__(self, death: Death | None = None) -> None:
        """None: it lives."""
        self.kill: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL)
        self._death = death
        self._left = 0 if death is None else death.count

    def step(self, name: str) -> bool:
        """Another step; may not return. Whether it was the last one."""
        if self._death is None or self._death.step not in (None, name):
            return False
        self._left -= 1
        if self._left:
            return False
        if self._death.later_s:
            timer = threading.Timer(self._death.later_s, self.kill)
            timer.daemon = True
            timer.start()
            return False
        self.kill()
        return True
