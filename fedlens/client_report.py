"""What `fedlens client` shows: a line for everything that matters, a bar while photos are read and models trained."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.evaluation import Evaluation
from fedlens_edge_client.events import (
    Embedded,
    Enrolled,
    Event,
    PhotosSkipped,
    Retrying,
    RoundFailed,
    RoundRefused,
    RoundReported,
    RoundStarted,
    TasksFinished,
    Trained,
    Waiting,
)

_WAITS = {
    "population": "the task starts when enough clients have enrolled",
    "next_round": "this client's part of the round is done, or the round has other members",
    "phase": "the method has nothing for this client in this phase",
    "no_task": "there is no task for this client",
    "superseded": "another process uses this client's identity",
    "busy": "the server holds as many polls as it can",
    "stopping": "the server is stopping; it will be back",
}
_NO_TASK_FOR_PHONES = (
    "there is no task for this client; engine executorch takes tasks whose bundle has programs for phones, "
    "made with `fedlens export --target pte` from a frozen backbone"
)
_NAMES_SHOWN = 5


class ClientReport:
    """Prints events as they come; use it in `with`, so that bars end before anything else is printed."""

    def __init__(self, console: Console, photos: Path, engine: EngineName = EngineName.TORCH) -> None:
        """Lines go to `console`; `photos` is the folder that skipped files are in, `engine` what runs programs."""
        self._console = console
        self._waits = _WAITS | ({"no_task": _NO_TASK_FOR_PHONES} if engine == EngineName.EXECUTORCH else {})
        self._photos = photos
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
        )
        self._bar = self._progress.add_task("", visible=False)
        self._waiting = ""
        self._skipped: dict[str, tuple[str, ...]] = {}

    def __enter__(self) -> Self:
        """Bars may be shown from now on, if somebody looks at a screen."""
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """No bars any more."""
        if self._console.is_terminal:
            self._progress.stop()

    def happened(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Embedded):
            self._show_bar("reading new photos", event.done, event.total)
        elif isinstance(event, Trained):
            self._show_bar(f"training, loss {event.loss:.3f}", event.step, event.steps)
        elif isinstance(event, PhotosSkipped):
            self.skipped(event.skipped)
        elif isinstance(event, Waiting):
            if event.reason != self._waiting:
                self._print(f"waiting: {self._waits.get(event.reason, event.reason)}")
        elif (line := _line(event)) is not None:
            self._progress.update(self._bar, visible=False)
            self._print(line)
        self._waiting = event.reason if isinstance(event, Waiting) else ""

    def skipped(self, skipped: Mapping[str, tuple[str, ...]]) -> None:
        """Name files that are not used, unless that was said before."""
        for reason, names in skipped.items():
            if self._skipped.get(reason) == names:
                continue
            self._skipped[reason] = names
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            self._print(f"skipped {len(names)} in {self._photos} ({reason}): {', '.join(names[:_NAMES_SHOWN])}{more}")

    def _show_bar(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._bar, description=what, completed=done, total=total, visible=done < total)

    def _print(self, line: str) -> None:
        # File names and the server's messages must not be taken for markup.
        self._console.print(line, markup=False, soft_wrap=True)


def _line(event: Event) -> str | None:
    match event:
        case Enrolled():
            return f"enrolled as {event.role}, client {event.client_id.hex()}"
        case Retrying():
            return f"{event.reason}; trying again in {event.delay_s:.1f} s"
        case RoundStarted():
            return (
                f"task {event.task}, round {event.round_number}: {event.train_photos} photos to train on, "
                f"{event.test_photos} to test"
            )
        case RoundReported():
            return (
                f"task {event.task}, round {event.round_number}: reported, {event.upload_bytes} bytes sent"
                + _accuracy(event.start, event.end)
            )
        case RoundFailed():
            return f"task {event.task}, round {event.round_number}: given up ({event.reason}): {event.detail}"
        case RoundRefused():
            return f"task {event.task}, round {event.round_number}: not taken ({event.code}): {event.message}"
        case TasksFinished():
            return "every task has ended"
        case _:
            return None


def _accuracy(start: Evaluation | None, end: Evaluation | None) -> str:
    figures = [f"{sums.correct / sums.count:.1%}" for sums in (start, end) if sums is not None and sums.count]
    count = next((sums.count for sums in (end, start) if sums is not None), 0)
    return f"; right on {count} test photos: {' -> '.join(figures)}" if figures else ""
