"""What a study shows of itself: a line for each job that is done; on a terminal also bars of what is going on."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedlens.compare.run.running import Committed
from fedlens.jobs import Ended, Told

BAR_WIDTH = 24


class StudyProgress:
    """Give it every message; used as a context."""

    def __init__(self, console: Console, runs: int, done: int, workers: int) -> None:
        """`done` of `runs` were there before. Shown from `with` on."""
        self._console = console
        self._runs, self._done, self._before = runs, done, done
        self._workers = workers
        self._started = time.monotonic()
        self._running: dict[str, Committed | str] = {}
        self._live = Live(self, console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        """Start showing."""
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bars away."""
        if self._live:
            self._live.stop()

    def begin_runs(self) -> None:
        """From here on time is what runs take."""
        self._started = time.monotonic()

    def show(self, message: Told | Ended, *, is_run: bool) -> None:
        """Bring what is shown up to date."""
        if isinstance(message, Told):
            self._running[message.job] = message.what
            return
        said = self._running.pop(message.job, None)
        if is_run and message.failure is None:
            self._done += 1
        if message.failure is not None:
            line = Text(f"{message.job} failed: {message.failure}", style="red")
        else:
            figures = f", {_accuracies(said)}" if isinstance(said, Committed) else ""
            count = f" ({self._done} of {self._runs} runs)" if is_run else ""
            line = Text(f"{message.job}: done{figures}{count}")
        self._console.print(line, soft_wrap=True)

    @property
    def left_s(self) -> float | None:
        """How long it will take, if the rest goes as what was done here; None: nothing is known yet."""
        fractions = [said.rounds / said.rounds_total for said in self._running.values() if isinstance(said, Committed)]
        worked = self._done - self._before + sum(fractions)
        if worked == 0:
            return None
        spent = time.monotonic() - self._started
        return spent / worked * (self._runs - self._before - worked)

    def __rich__(self) -> Group:
        """What is done, what runs, and how long it will take."""
        lines = Table.grid(padding=(0, 2))
        left = self.left_s
        lines.add_row("runs", _bar(self._done, self._runs), f"{self._done} of {self._runs}{_left(left)}")
        for name, said in self._running.items():
            if isinstance(said, Committed):
                rounds = f"round {said.rounds} of {said.rounds_total}, {_accuracies(said)}"
                lines.add_row(Text(name), _bar(said.rounds, said.rounds_total), rounds)
            else:
                lines.add_row(Text(name), "", Text(str(said)))
        return Group(lines)


def _bar(completed: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=completed, width=BAR_WIDTH)


def _accuracies(said: Committed) -> str:
    shown = [
        f"{name} {share:.1%}"
        for name, share in (("global", said.global_accuracy), ("personal", said.personal_accuracy))
        if share is not None
    ]
    return ", ".join(shown) or "not measured yet"


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    return f", about {text} left"
