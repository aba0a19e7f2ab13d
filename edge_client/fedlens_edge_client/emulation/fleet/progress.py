"""A fleet's progress: a line for each finished round, and bars of the current one or, without a terminal, its lines."""

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from fedlens_edge_client.client.events import Retrying
from fedlens_edge_client.client.waiting import Reminder
from fedlens_edge_client.emulation.fleet.display import LiveDisplay, counted, say
from fedlens_edge_client.emulation.fleet.messages import ClientEnded, Happened, Message
from fedlens_edge_client.emulation.fleet.status import FleetStatus, RoundId, RoundStatus

BAR_WIDTH = 30
SETTLED_S = 1.0
"""Shorter waits, as between two rounds, are not reported."""
QUIET_S = 60.0
"""The longest time without a line where there are no bars."""


class FleetProgress(LiveDisplay):
    """Shows the workers' messages during a `with` block."""

    def __init__(self, console: Console, workers: int, now: Callable[[], float] = time.monotonic) -> None:
        """`now` gives seconds of a monotonic clock."""
        super().__init__(console)
        self._workers = workers
        self._status = FleetStatus()
        self._printed: set[RoundId] = set()  # of those that the status keeps
        self._failures: set[str] = set()  # that were printed
        self._now = now
        self._told_at = now()
        self._reminder = Reminder(self._waited, now)
        self._wait: tuple[str, bool] | None = None
        self._wait_since = now()

    def __exit__(self, *error: object) -> None:
        """Print the last round, and remove the bars."""
        self._print(list(self._status.rounds))
        super().__exit__(*error)

    def show(self, message: Message, status: FleetStatus) -> None:
        """Show a message; `status` has counted it."""
        self._status = status
        if isinstance(message, Happened) and isinstance(message.event, Retrying):
            self.look(is_news=True)
        failure = message.failure if isinstance(message, ClientEnded) else None
        if failure is not None and failure not in self._failures:  # many clients may fail for one reason
            self._failures.add(failure)
            self._say(f"a client failed: {failure}", "red")
        begun = list(status.rounds)
        # A worker's last message of a round may come behind another worker's first one of the next round.
        self._print(begun[:-2] + [key for key in begun[-2:-1] if status.rounds[key].is_over])

    def look(self, *, is_news: bool = False) -> None:
        """Print why the whole fleet waits, if it does, or how far it is; call it several times a second.

        With `is_news`, a wait that may end with the next event has just begun again.
        """
        wait = self._status.wait
        if wait != self._wait:
            self._wait, self._wait_since = wait, self._now()
        if wait is None:
            self._reminder.goes_on()
            if not self._console.is_terminal and self._now() - self._told_at >= QUIET_S:
                self._say(self._how_far())
            return
        reason, lasts = wait
        if (lasts or is_news) and self._now() - self._wait_since >= SETTLED_S:
            self._reminder.waits(reason)

    def _waited(self, reason: str, seconds: float) -> None:
        lasted = f" (for {seconds:.0f} s)" if seconds >= 1 else ""
        self._say(f"clients: {reason}{lasted}")

    def _print(self, done: list[RoundId]) -> None:
        self._printed &= self._status.rounds.keys()
        for key in done:
            if key not in self._printed:
                self._printed.add(key)
                self._say(f"round {key[1]:>3}: {_summary(self._status.rounds[key])}")

    def _how_far(self) -> str:
        if not self._status.rounds:
            return "; ".join(self._status.activity.values()) or "starting"
        (_, number), newest = list(self._status.rounds.items())[-1]
        return f"round {number:>3}: {_summary(newest)} so far"

    def _say(self, line: str, style: str = "") -> None:
        self._told_at = self._now()
        say(self._console, line, style)

    def __rich__(self) -> Group:
        """The bar of the newest round, and each worker's activity."""
        lines = Table.grid(padding=(0, 2))
        if self._status.rounds:
            (_, number), newest = list(self._status.rounds.items())[-1]
            bar = ProgressBar(total=max(len(newest.started), 1), completed=len(newest.reported), width=BAR_WIDTH)
            lines.add_row(f"round {number}", bar, _summary(newest))
        for worker in range(self._workers):
            lines.add_row(f"worker {worker}", "", escape(self._status.activity.get(worker, "starting")))
        return Group(lines)


def _summary(status: RoundStatus) -> str:
    loss = "" if status.mean_loss is None else f", mean loss {status.mean_loss:.3f}"
    return f"{len(status.reported)} of {counted(len(status.started), 'client')} reported{loss}"
