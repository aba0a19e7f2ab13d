"""The parent's side of a fleet: starts and stops the workers, reads their messages, and notices deaths."""

import multiprocessing
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Self

from fedlens_edge_client.emulation.fleet import parent_signals, worker
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import Message, WorkerEnded
from fedlens_edge_client.errors import EdgeClientError, abbreviated

END_TIMEOUT_S = 10.0


class WorkerDied(EdgeClientError):
    """A worker process ended unexpectedly; the text names it and its clients."""


class FleetProcesses:
    """The worker processes of a fleet during a `with` block; its end kills those still running."""

    def __init__(self, config: FleetConfig) -> None:
        """`with` starts the workers."""
        self._config = config
        self._processes: list[SpawnProcess] = []
        self._connections: dict[Connection, int] = {}
        self._ended: set[int] = set()

    def __enter__(self) -> Self:
        """Start the workers."""
        context = multiprocessing.get_context("spawn")
        with parent_signals.held_back(), _many_files():
            for number in range(self._config.workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=worker.main, args=(theirs, self._config, number), daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._connections[ours] = number
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for workers that are about to end, and kill the others."""
        for number, process in enumerate(self._processes):
            if number in self._ended:
                process.join(END_TIMEOUT_S)
            process.kill()
            process.join()
            process.close()
        for connection in self._connections:
            connection.close()

    @property
    def running(self) -> bool:
        """True until all workers have ended."""
        return len(self._ended) < len(self._processes)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, in their order."""
        return [process.pid or 0 for process in self._processes]

    def stop(self) -> None:
        """Ask all clients to end after their current step."""
        for connection, number in self._connections.items():
            if number not in self._ended:
                try:
                    connection.send_bytes(worker.STOP)
                except OSError:
                    continue  # `messages` will find that it has died

    def messages(self, timeout_s: float) -> Iterator[Message]:
        """The workers' messages; waits up to `timeout_s` for the first.

        Raises:
            WorkerDied: A worker has ended unexpectedly.
        """
        open_ends = [c for c, number in self._connections.items() if number not in self._ended]
        for connection in wait(open_ends, timeout_s):
            assert isinstance(connection, Connection)
            try:
                message: Message = connection.recv()
            except (EOFError, OSError) as error:
                raise WorkerDied(self._death_text(self._connections[connection])) from error
            if isinstance(message, WorkerEnded):
                self._ended.add(message.worker)
            yield message

    def _death_text(self, number: int) -> str:
        process = self._processes[number]
        process.join(END_TIMEOUT_S)
        code = process.exitcode
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with status {code}"
        )
        clients = abbreviated([self._config.name(index) for index in self._config.clients_of_worker(number)], 5)
        return f"worker {number} (process {process.pid}; {clients}) {how}"


@contextmanager
def _many_files() -> Iterator[None]:
    """Raise the limit of open files, which child processes inherit, as far as the system allows.

    Each client needs about five; the usual limit of 1024 is for programs that call select().
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system may refuse its own "unlimited"; then the limit stays.
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
