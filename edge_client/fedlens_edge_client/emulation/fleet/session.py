"""A fleet run by a person: progress while it runs, Ctrl-C, a summary, an exit status."""

import signal
from types import FrameType, TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.progress import FleetProgress
from fedlens_edge_client.emulation.fleet.running import run_fleet
from fedlens_edge_client.emulation.fleet.status import FleetStatus
from fedlens_edge_client.emulation.partitions import PhotoPool
from fedlens_edge_client.engines.choice import EngineName

EXIT_FAILED = 1
SHOWN_TROUBLES = 10


class Interrupts:
    """Notes the first Ctrl-C or SIGTERM; a second one ends the program at once. For the main thread."""

    def __init__(self) -> None:
        """Listens from `with` on."""
        self.received: int | None = None
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def __enter__(self) -> Self:
        """Listen."""
        for number in self._before:
            signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave signals as they were."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_status(self) -> int:
        """As a shell says it: 130 for Ctrl-C, 143 for SIGTERM; 0 if there was none."""
        return 0 if self.received is None else 128 + self.received

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number


def run_session(config: FleetConfig, console: Console) -> int:
    """Run a fleet and tell of it.

    Returns:
        The exit status: 0 when all tasks have ended, 130 or 143 when it was stopped, 1 when a client failed.

    Raises:
        EdgeClientError: As `run_fleet`.
    """
    introduce(config, console)
    with Interrupts() as interrupts:
        with FleetProgress(console, config.workers) as progress:

            def should_stop() -> bool:
                progress.look()
                return _told_to_stop(interrupts, console)

            status = run_fleet(config, progress.show, should_stop)
    _summarise(status, config, console)
    if interrupts.received is not None:
        console.print(
            "stopped; what is not reported yet is in the outboxes, the same command goes on from here", soft_wrap=True
        )
        return interrupts.exit_status
    return EXIT_FAILED if status.failures else 0


def introduce(config: FleetConfig, console: Console) -> None:
    """Tell of a fleet and of its photos."""
    pool = config.pool
    console.print(
        f"{config.clients} clients with {sum(map(len, pool.train)):,} train photos of {len(pool.class_names)} classes "
        f"({config.partition.summary}), {config.workers} worker processes"
        + (f", programs run by {' and '.join(config.engines)}" if set(config.engines) != {EngineName.TORCH} else ""),
        highlight=False,
        soft_wrap=True,
    )
    tell_oddities(pool, console)


def tell_oddities(pool: PhotoPool, console: Console) -> None:
    """Tell which files were left out of a pool, and what is odd about it."""
    for reason, files in pool.skipped.items():
        tell_left_out(reason, files, console)
    for note in pool.notes:
        console.print(escape(note), highlight=False, soft_wrap=True)


def tell_left_out(reason: str, files: tuple[str, ...], console: Console) -> None:
    """Tell how many files were left out, and name the first."""
    named = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    console.print(f"left out {len(files)} {escape(reason)}: {escape(named)}", highlight=False, soft_wrap=True)


def _told_to_stop(interrupts: Interrupts, console: Console) -> bool:
    if interrupts.received is None:
        return False
    console.print("stopping: clients end the step in which they are; once more ends them at once")
    return True


def _summarise(status: FleetStatus, config: FleetConfig, console: Console) -> None:
    for index, failure in sorted(status.failures.items()):
        console.print(
            f"[red]{escape(config.name(index))} failed[/]: {escape(failure)}", highlight=False, soft_wrap=True
        )
    for line in status.trouble[:SHOWN_TROUBLES]:
        console.print(f"[yellow]{escape(line)}[/]", highlight=False, soft_wrap=True)
    if len(status.trouble) > SHOWN_TROUBLES:
        console.print(f"[yellow]and {len(status.trouble) - SHOWN_TROUBLES} more[/]", highlight=False, soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_row("rounds seen", str(len(status.rounds)))
    table.add_row(
        "updates reported", f"{status.reports:,} by {config.clients} clients, {status.bytes_uploaded:,} bytes"
    )
    if config.evaluator_token is not None:
        table.add_row("evaluations", str(status.evaluations))
    console.print(table)
