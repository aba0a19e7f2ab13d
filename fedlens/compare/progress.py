"""A study's progress: a line for each finished job and, on a terminal, bars of the running ones."""

import time

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedlens.compare.run.running import RunProgress
from fedlens.jobs import JobEnded, JobProgress
from fedlens_edge_client.emulation.fleet.display import LiveDisplay, say

BAR_WIDTH = 24


class StudyProgress(LiveDisplay):
    """Shows the jobs' messages during a `with` block."""

    def __init__(self, console: Console, runs: int, done: int) -> None:
        """`done` of `runs` were finished before."""
        super().__init__(console)
        self._runs, self._done, self._before = runs, done, done
        self._started = time.monotonic()
        self._running: dict[str, RunProgress | str] = {}
        self._earlier: dict[str, float] = {}  # by job the share of a run that an earlier command has done

    def begin_runs(self) -> None:
        """Restart the clock by which the remaining time is estimated."""
        self._started = time.monotonic()

    def show(self, message: JobProgress | JobEnded, *, is_run: bool) -> None:
        """Show a message; `is_run` tells runs from other jobs."""
        if isinstance(message, JobProgress):
            self._running[message.job] = message.value
            if isinstance(message.value, str):
                say(self._console, f"{message.job}: {message.value}")
            elif isinstance(message.value, RunProgress):
                # A report comes when a round has ended.
                self._earlier.setdefault(message.job, (message.value.rounds - 1) / message.value.rounds_total)
            return
        last = self._running.pop(message.job, None)
        if message.failure is not None:
            self._earlier.pop(message.job, None)
            say(self._console, f"{message.job} failed: {message.failure}", "red")
            return
        self._done += is_run
        accuracies = f", {_accuracies(last)}" if isinstance(last, RunProgress) else ""
        count = f" ({self._done} of {self._runs} runs)" if is_run else ""
        say(self._console, f"{message.job}: done{accuracies}{count}")

    @property
    def left_s(self) -> float | None:
        """The estimated remaining seconds; None before the first round."""
        running = [progress for progress in self._running.values() if isinstance(progress, RunProgress)]
        done = self._done - self._before + sum(progress.rounds / progress.rounds_total for progress in running)
        worked = done - sum(self._earlier.values())
        if worked <= 0:
            return None
        spent = time.monotonic() - self._started
        return spent / worked * (self._runs - self._before - done)

    def __rich__(self) -> Group:
        """Bars of all runs and of each running one."""
        lines = Table.grid(padding=(0, 2))
        lines.add_row("runs", _bar(self._done, self._runs), f"{self._done} of {self._runs}{_left(self.left_s)}")
        for name, progress in self._running.items():
            if isinstance(progress, RunProgress):
                rounds = f"round {progress.rounds} of {progress.rounds_total}, {_accuracies(progress)}"
                lines.add_row(Text(name), _bar(progress.rounds, progress.rounds_total), rounds)
            else:
                lines.add_row(Text(name), "", Text(str(progress)))
        return Group(lines)


def _bar(completed: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=completed, width=BAR_WIDTH)


def _accuracies(progress: RunProgress) -> str:
    known = (("global", progress.global_accuracy), ("personal", progress.personal_accuracy))
    return ", ".join(f"{name} {value:.1%}" for name, value in known if value is not None) or "not measured yet"


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    return f", about {text} left"
