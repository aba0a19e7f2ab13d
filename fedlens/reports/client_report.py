"""The output of `fedlens client`: a line for each important event, and bars for reading photos and training."""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedlens.reports.tables import counted
from fedlens_edge_client.client import events
from fedlens_edge_client.client.waiting import REASONS, Reminder, described
from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.training.evaluation import Evaluation

_LOOK_EVERY_S = 1.0
_NO_TASK_FOR_PHONES = (
    "there is no task for this client; engine executorch takes tasks whose bundle has programs for phones, "
    "made with `fedlens export --target pte` from a frozen backbone"
)
_NAMES_SHOWN = 5


class ClientReport:
    """Prints events during a `with` block, which ends the bars before other output."""

    def __init__(
        self,
        console: Console,
        photos: Path,
        engine: EngineName = EngineName.TORCH,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Print to `console`; `photos` is the folder of skipped files, `engine` the client's engine."""
        self._console = console
        self._no_task = _NO_TASK_FOR_PHONES if engine == EngineName.EXECUTORCH else REASONS["no_task"]
        self._photos = photos
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
        )
        self._bar = self._progress.add_task("", visible=False)
        self._reminder = Reminder(self._waited, now)
        self._waiting = ""
        self._skipped: dict[str, tuple[str, ...]] = {}

    def __enter__(self) -> Self:
        """Show bars if the console is a terminal."""
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End the bars."""
        if self._console.is_terminal:
            self._progress.stop()

    def happened(self, event: events.Event) -> None:
        """Print an event or update a bar."""
        if isinstance(event, events.Embedded):
            self._show_bar("reading new photos", event.done, event.total)
        elif isinstance(event, events.Trained):
            self._show_bar(f"training, loss {event.loss:.3f}", event.step, event.steps)
        elif isinstance(event, events.PhotosSkipped):
            self.skipped(event.skipped)
        elif isinstance(event, events.Waiting | events.Retrying):
            self._progress.update(self._bar, visible=False)
        elif (line := _line(event)) is not None:
            self._progress.update(self._bar, visible=False)
            self._print(line)
        if isinstance(event, events.Retrying):
            self._waiting = ""
            self._reminder.waits(f"{event.reason}; trying again")
        elif isinstance(event, events.Waiting):
            self._waiting = f"waiting: {self._no_task if event.reason == 'no_task' else described(event)}"
            self.look()
        else:
            self._waiting = ""
            self._reminder.goes_on()

    def look(self) -> None:
        """Print again why the client waits, if that is due; a retry reports its result itself."""
        if self._waiting:
            self._reminder.waits(self._waiting)

    async def look_on(self) -> None:
        """Call `look` from time to time until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.look()

    def skipped(self, skipped: Mapping[str, tuple[str, ...]]) -> None:
        """Print skipped files that were not printed before."""
        for reason, names in skipped.items():
            if self._skipped.get(reason) == names:
                continue
            self._skipped[reason] = names
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            self._print(f"skipped {len(names)} in {self._photos} ({reason}): {', '.join(names[:_NAMES_SHOWN])}{more}")

    def _show_bar(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._bar, description=what, completed=done, total=total, visible=done < total)

    def _waited(self, reason: str, seconds: float) -> None:
        self._print(f"{reason} (for {seconds:.0f} s)" if seconds >= 1 else reason)

    def _print(self, line: str) -> None:
        # File names and the server's messages are no markup.
        self._console.print(line, markup=False, soft_wrap=True)


def _line(event: events.Event) -> str | None:
    where = f"task {event.task}, round {event.round_number}" if isinstance(event, events.RoundEvent) else ""
    match event:
        case events.Enrolled():
            return f"enrolled as {event.role}, client {event.client_id.hex()}"
        case events.RoundStarted():
            return f"{where}: {counted(event.train_photos, 'photo')} to train on, {event.test_photos} to test"
        case events.RoundReported():
            accuracy = _accuracy(event.evaluations.get("start"), event.evaluations.get("trained"))
            return f"{where}: reported, {event.upload_bytes} bytes sent{accuracy}"
        case events.RoundFailed():
            return f"{where}: given up ({event.reason}): {event.detail}"
        case events.RoundRefused():
            return f"{where}: not taken ({event.code}): {event.message}"
        case events.TasksFinished():
            return "every task that this client can run has ended"
        case _:
            return None


def _accuracy(start: Evaluation | None, end: Evaluation | None) -> str:
    figures = [f"{sums.correct / sums.count:.1%}" for sums in (start, end) if sums is not None and sums.count]
    count = next((sums.count for sums in (end, start) if sums is not None), 0)
    return f"; right on {counted(count, 'test photo')}: {' -> '.join(figures)}" if figures else ""
