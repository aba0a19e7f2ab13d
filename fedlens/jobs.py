"""Jobs in processes of their own, as many at a time as there are cores; each tells how far it is."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol

LOOK_EVERY_S = 0.2
END_TIMEOUT_S = 10.0
EXIT_ABANDONED = 70  # the process that started the job is gone


class Job(Protocol):
    """Something to do; pickled to the process that does it."""

    @property
    def name(self) -> str:
        """For people; each job has its own."""
        ...

    def work(self, tell: Callable[[Any], None]) -> None:
        """Do it; `tell` takes anything that can be pickled to the process that started it.

        An exception fails the job: of the classes in `known_errors` its text is told, of others their traceback.
        """
        ...

    def known_errors(self) -> tuple[type[Exception], ...]:
        """What can go wrong without anybody being surprised."""
        ...


@dataclass(frozen=True, slots=True)
class Told:
    """What a job has said of itself."""

    job: str
    what: Any


@dataclass(frozen=True, slots=True)
class Ended:
    """A job is over; `failure` says why it failed."""

    job: str
    failure: str | None


def run_jobs(
    jobs: Sequence[Job], workers: int, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[Told | Ended]:
    """Do all jobs, in order as far as there is room; what they say comes as it happens.

    After `should_stop` says so, or when the caller stops asking, all that run are killed: what they have stored stays.
    """
    context = multiprocessing.get_context("spawn")
    waiting = list(jobs)
    running: dict[Connection, tuple[str, SpawnProcess]] = {}
    try:
        while (waiting or running) and not should_stop():
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                ours, theirs = context.Pipe()
                process = context.Process(target=_main, args=(theirs, job), daemon=True)
                _start_deaf(process)
                theirs.close()
                running[ours] = job.name, process
            for connection in wait(list(running), LOOK_EVERY_S):
                assert isinstance(connection, Connection)
                name, process = running[connection]
                try:
                    message: Told | Ended = connection.recv()
                except (EOFError, OSError):
                    process.join(END_TIMEOUT_S)
                    message = Ended(name, f"its process {_how(process.exitcode)}")
                if isinstance(message, Ended):
                    del running[connection]
                    _end(connection, process)
                yield message
    finally:
        for connection, (_, process) in running.items():
            process.kill()
            _end(connection, process)


def _start_deaf(process: SpawnProcess) -> None:
    """Start it with Ctrl-C blocked, which reaches every process of the terminal; the one that started it decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(connection: Connection, process: SpawnProcess) -> None:
    process.join(END_TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    process.close()
    connection.close()


def _how(code: int | None) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"


def _main(connection: Connection, job: Job) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    from fedlens_edge_client.engines.memory import keep_freed_memory

    keep_freed_memory()
    threading.Thread(target=_watch, args=(connection,), name="job-leash", daemon=True).start()
    try:
        job.work(lambda what: connection.send(Told(job.name, what)))
        failure = None
    except job.known_errors() as error:
        failure = str(error)
    except Exception:
        failure = traceback.format_exc()
    connection.send(Ended(job.name, failure))
    # All is on disk and told; taking torch down properly would take seconds.
    os._exit(0)


def _watch(connection: Connection) -> None:
    """End with the process that started this one, however it ends."""
    try:
        connection.recv_bytes()
    except (EOFError, OSError):
        os._exit(EXIT_ABANDONED)
