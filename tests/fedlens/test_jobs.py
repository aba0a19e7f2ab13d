"""Jobs in child processes: what they report, and how they end."""

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

from fedlens.errors import FedlensError
from fedlens.jobs import Job, JobEnded, JobProgress, Report, run_jobs

KEPT: list[object] = []


def count_to_two(report: Report) -> None:
    report(1)
    report(2)


def refuse(report: Report) -> None:
    raise FedlensError("the folder is full")


def break_down(report: Report) -> None:
    raise ZeroDivisionError


def keep_a_semaphore(report: Report) -> None:
    # As tqdm does while torch exports a program.
    KEPT.append(multiprocessing.RLock())


def test_a_job_reports_its_values_and_its_end() -> None:
    messages = list(run_jobs([Job("count", count_to_two)], 1))

    assert messages == [JobProgress("count", 1), JobProgress("count", 2), JobEnded("count", None)]


def test_an_expected_error_is_a_sentence_and_another_one_has_its_traceback() -> None:
    found = {message.job: message for message in run_jobs([Job("refused", refuse), Job("broken", break_down)], 2)}

    assert found["refused"] == JobEnded("refused", "the folder is full")
    broken = found["broken"]
    assert isinstance(broken, JobEnded) and broken.failure is not None
    assert broken.failure.startswith("Traceback") and "ZeroDivisionError" in broken.failure


def test_a_sigterm_to_all_processes_does_not_end_a_job_that_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlens.jobs.LOOK_EVERY_S", 0.0)

    def never() -> bool:
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, signal.SIGTERM)
        return False

    messages = list(run_jobs([Job("count", count_to_two)], 1, never))

    assert messages[-1] == JobEnded("count", None)


def test_a_job_that_holds_a_semaphore_ends_without_a_warning() -> None:
    script = (
        "from fedlens.jobs import Job, run_jobs; from tests.fedlens.test_jobs import keep_a_semaphore\n"
        "print([message.failure for message in run_jobs([Job('lock', keep_a_semaphore)], 1)])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("[None]\n", "")
