"""A study's progress: the remaining time."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from fedlens.compare import progress as module
from fedlens.compare.progress import StudyProgress
from fedlens.compare.run.running import RunProgress
from fedlens.jobs import JobProgress


def test_rounds_of_an_earlier_command_took_none_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    progress = StudyProgress(Console(quiet=True), runs=2, done=1)
    progress.begin_runs()
    for rounds in (191, 192):
        now += 10.0
        progress.show(JobProgress("plain, seed 1", RunProgress(rounds, 200, None, None)), is_run=True)

    # 8 rounds are left, and each of the two of this command took 10 s.
    assert progress.left_s == pytest.approx(80.0)
