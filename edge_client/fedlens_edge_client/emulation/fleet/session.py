"""A fleet run from a terminal: progress, Ctrl-C, summary and exit status."""

import signal
from types import FrameType
from typing import Self

from rich.console import Console
from rich.table import Table

from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.display import counted, say
from fedlens_edge_client.emulation.fleet.messages import client_name
from fedlens_edge_client.emulation.fleet.progress import FleetProgress
from fedlens_edge_client.emulation.fleet.running import run_fleet
from fedlens_edge_client.emulation.fleet.status import FleetStatus
from fedlens_edge_client.emulation.partitions import PhotoPool
from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.errors import abbreviated

EXIT_FAILED = 1


class Interrupts:
    """Notes the first Ctrl-C or SIGTERM; raises KeyboardInterrupt at the second one. For the main thread."""

    def __init__(self) -> None:
        """Signals are handled during a `with` block."""
        self.received: int | None = None
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def __enter__(self) -> Self:
        """Handle signals."""
        for number in self._before:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the earlier handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_status(self) -> int:
        """The status as in a shell: 130 after Ctrl-C, 143 after SIGTERM; 0 without a signal."""
        return 0 if self.received is None else 128 + self.received

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number


def run_session(config: FleetConfig, console: Console) -> int:
    """Run a fleet with progress and a summary.

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
                if interrupts.received is not None:
                    say(console, "stopping: clients finish their current step; Ctrl-C again ends them at once")
                return interrupts.received is not None

            status = run_fleet(config, progress.show, should_stop)
    summarise(status, config, console)
    if interrupts.received is not None:
        say(console, "stopped; unsent updates are in the outboxes, the same command goes on from here")
        return interrupts.exit_status
    return EXIT_FAILED if status.failures else 0


def introduce(config: FleetConfig, console: Console) -> None:
    """Print a fleet's size, photos and engines."""
    pool = config.pool
    engines = f", programs run by {' and '.join(config.engines)}" if set(config.engines) != {EngineName.TORCH} else ""
    say(
        console,
        f"{counted(config.clients, 'client')} with {sum(map(len, pool.train)):,} train photos of "
        f"{len(pool.class_names)} classes ({config.partition.summary}), {counted(config.workers, 'worker')}{engines}",
    )
    say_oddities(pool, console)
    if absent := sorted({entry.client for entry in config.plan.fault} - set(config.indices)):
        names = abbreviated([client_name(index) for index in absent], 3)
        say(console, f"the fault plan names clients that are not here: {names}", "yellow")


def say_oddities(pool: PhotoPool, console: Console) -> None:
    """Print which files are left out of a pool, and what is odd about it."""
    for reason, files in pool.skipped.items():
        say_left_out(reason, files, console)
    for note in pool.notes:
        say(console, note)


def say_left_out(reason: str, files: tuple[str, ...], console: Console) -> None:
    """Print the number of files that are left out, and the first names."""
    say(console, f"left out {len(files)} {reason}: {abbreviated(files, 3)}")


def summarise(status: FleetStatus, config: FleetConfig, console: Console) -> None:
    """Print what a fleet has done, and what went wrong."""
    for index, failure in sorted(status.failures.items()):
        say(console, f"{config.name(index)} failed: {failure}", "red")
    for line in status.trouble:
        say(console, line, "yellow")
    if untold := status.troubles - len(status.trouble):
        say(console, f"and {untold} more", "yellow")
    table = Table.grid(padding=(0, 2))
    table.add_row("rounds seen", str(len(status.seen)))
    clients = counted(config.clients, "client") + (f" ({len(status.failures):,} failed)" if status.failures else "")
    table.add_row("updates reported", f"{status.reports:,} by {clients}, {counted(status.bytes_uploaded, 'byte')}")
    if status.late:
        table.add_row("updates too late", f"{status.late:,}")
    if config.evaluator_token is not None:
        table.add_row("evaluations", str(status.evaluations))
    console.print(table)
