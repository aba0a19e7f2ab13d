"""Jobs in child processes, a limited number at a time, which report their progress."""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from typing import Any

from fedlens.errors import FedlensError
from fedlens_edge_client.emulation.fleet import parent_signals

LOOK_EVERY_S = 0.2
END_TIMEOUT_S = 10.0
REPORT_EVERY_S = 0.1
EXIT_ABANDONED = 70  # the parent process has ended

Report = Callable[[Any], None]
"""Sends a picklable value to the parent process."""


@dataclass(frozen=True, slots=True)
class Job:
    """A function to call in a child process, which must be picklable; every job has a name of its own."""

    name: str
    work: Callable[[Report], None]


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A value that a job has reported."""

    job: str
    value: Any


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job has ended; `failure` is None or the reason."""

    job: str
    failure: str | None


def run_jobs(
    jobs: Sequence[Job], workers: int, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[JobProgress | JobEnded]:
    """Run all jobs, started in order, at most `workers` at a time; yields their messages.

    Kills the running jobs once `should_stop` returns True or the caller stops iterating; files they have written stay.
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
                with parent_signals.held_back():
                    process.start()
                theirs.close()
                running[ours] = job.name, process
            for connection in wait(list(running), LOOK_EVERY_S):
                assert isinstance(connection, Connection)
                name, process = running[connection]
                try:
                    message: JobProgress | JobEnded = connection.recv()
                except (EOFError, OSError):
                    process.join(END_TIMEOUT_S)
                    message = JobEnded(name, f"its process {exit_text(process.exitcode)}")
                if isinstance(message, JobEnded):
                    del running[connection]
                    _end(connection, process)
                yield message
    finally:
        for connection, (_, process) in running.items():
            process.kill()
            _end(connection, process)


def throttled(report: Report) -> Callable[[Any, bool], None]:
    """Limit reports to one every `REPORT_EVERY_S`.

    Returns:
        A function of a value and of whether it is the last one; the last one is always reported.
    """
    reported = 0.0

    def report_throttled(value: Any, is_last: bool) -> None:
        nonlocal reported
        now = time.monotonic()
        if is_last or now - reported >= REPORT_EVERY_S:
            reported = now
            report(value)

    return report_throttled


def exit_text(code: int | None) -> str:
    """An exit status in words; that of a killed process is negative, as in `subprocess`."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"


def _end(connection: Connection, process: SpawnProcess) -> None:
    process.join(END_TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    process.close()
    connection.close()


def _main(connection: Connection, job: Job) -> None:
    parent_signals.ignore()
    from fedlens_edge_client.engines.memory import keep_freed_memory

    keep_freed_memory()
    threading.Thread(target=_end_with_parent, args=(connection,), name="end-with-parent", daemon=True).start()
    try:
        job.work(lambda value: connection.send(JobProgress(job.name, value)))
        failure = None
    except Exception as error:
        failure = failure_text(error)
    connection.send(JobEnded(job.name, failure))
    # The last finalizer, after those that release semaphores: taking torch down properly would take seconds.
    Finalize(None, os._exit, args=(0,), exitpriority=-1)


def failure_text(error: Exception) -> str:
    """The reason for people: the text of an expected error, else where an unexpected one comes from."""
    return str(error) if isinstance(error, _expected_errors()) else "".join(traceback.format_exception(error))


def _expected_errors() -> tuple[type[Exception], ...]:
    """Errors whose text is for people; others are shown with their traceback."""
    from fedlens_edge_client.errors import EdgeClientError
    from fedlens_export.errors import ExportError
    from fedlens_proto.errors import ProtoError
    from fedlens_server.errors import ServerError

    return EdgeClientError, ExportError, FedlensError, ProtoError, ServerError, OSError


def _end_with_parent(connection: Connection) -> None:
    try:
        connection.recv_bytes()
    except (EOFError, OSError):
        os._exit(EXIT_ABANDONED)
