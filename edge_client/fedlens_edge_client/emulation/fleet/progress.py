"""What a fleet shows of itself: a line for each round that is done; on a terminal also bars of what is going on."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from fedlens_edge_client.client.events import Retrying
from fedlens_edge_client.client.waiting import Reminder
from fedlens_edge_client.emulation.fleet.messages import Happened, Message
from fedlens_edge_client.emulation.fleet.status import FleetStatus, RoundId, RoundStatus

BAR_WIDTH = 30
SETTLED_S = 1.0
"""Between two rounds all clients wait for so little time that nobody has to be told."""


class FleetProgress:
    """Give it every message; used as a context."""

    def __init__(self, console: Console, workers: int, now: Callable[[], float] = time.monotonic) -> None:
        """Shown from `with` on."""
        self._console = console
        self._workers = workers
        self._status = FleetStatus()
        self._told: set[RoundId] = set()
        self._now = now
        self._reminder = Reminder(self._waited, now)
        self._wait: tuple[str, bool] | None = None
        self._wait_since = now()
        self._live = Live(self, console=console, refresh_per_second=8, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        """Start showing."""
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell of the last round, and take the bars away."""
        self._tell(list(self._status.rounds))
        if self._live:
            self._live.stop()

    def show(self, message: Message, status: FleetStatus) -> None:
        """Bring what is shown up to date."""
        self._status = status
        if isinstance(message, Happened) and isinstance(message.event, Retrying):
            self._look(is_news=True)
        begun = list(status.rounds)
        # What one worker says last of a round may come behind what another one says first of the next.
        self._tell(begun[:-2] + [key for key in begun[-2:-1] if status.rounds[key].is_over])

    def look(self) -> None:
        """Say why the whole fleet waits, if it does; to be called several times a second."""
        self._look(is_news=False)

    def _look(self, *, is_news: bool) -> None:
        wait = self._status.wait
        if wait != self._wait:
            self._wait, self._wait_since = wait, self._now()
        if wait is None:
            self._reminder.goes_on()
            return
        reason, lasts = wait
        if (lasts or is_news) and self._now() - self._wait_since >= SETTLED_S:
            self._reminder.waits(reason)

    def _waited(self, reason: str, seconds: float) -> None:
        lasted = f" (for {seconds:.0f} s)" if seconds else ""
        self._console.print(f"clients: {reason}{lasted}", markup=False, highlight=False, soft_wrap=True)

    def _tell(self, done: list[RoundId]) -> None:
        for key in done:
            if key not in self._told:
                self._told.add(key)
                self._console.print(
                    f"round {key[1]:>3}: {_summary(self._status.rounds[key])}", highlight=False, soft_wrap=True
                )

    def __rich__(self) -> Group:
        """The bar of the newest round, and what every worker does."""
        lines = Table.grid(padding=(0, 2))
        if self._status.rounds:
            (_, number), newest = list(self._status.rounds.items())[-1]
            bar = ProgressBar(total=max(len(newest.started), 1), completed=len(newest.reported), width=BAR_WIDTH)
            lines.add_row(f"round {number}", bar, _summary(newest))
        for worker in range(self._workers):
            lines.add_row(f"worker {worker}", "", escape(self._status.doing.get(worker, "starting")))
        return Group(lines)


def _summary(status: RoundStatus) -> str:
    loss = "" if status.mean_loss is None else f", mean loss {status.mean_loss:.3f}"
    return f"{len(status.reported)} of {len(status.started)} clients reported{loss}"
