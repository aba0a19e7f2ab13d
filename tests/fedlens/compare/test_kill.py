"""A study that is killed, all its processes at once, in the middle of a run."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fedlens.compare.conftest import FEDLENS, fedlens

# Each client keeps its classifier, which only it has.
STUDY = """
name = "kept"
clients = 3
rounds = 12
seeds = [1]
evaluator = false

[photos]
source = "digits"
train_per_class = 12
test_per_class = 5

[partition]
name = "camera-iid"
per_class = 3

[model]
names = ["lenet5"]
input_size = 16
batch = 16

[hyper]
lr_extractor = 0.05
lr_classifier = 0.05

[methods.kept]
method = "fedper"
personal_evaluation = true
"""
RUN = Path("runs/kept/seed-1")


def rounds_done(out: Path) -> int:
    times = out / RUN / "times.jsonl"
    return len(times.read_text().splitlines()) if times.is_file() else 0


def results(out: Path) -> Any:
    """All but how long rounds took and what was sent down, of which an interrupted round sends some again."""
    found = json.loads((out / "results.json").read_text())
    for run in found["runs"]:
        for entry in run["rounds"]:
            del entry["seconds"], entry["bytes_down"]
    return found


@pytest.mark.slow
def test_a_study_killed_in_a_run_goes_on_to_the_results_of_one_that_was_not(tmp_path: Path) -> None:
    study = tmp_path / "kept.toml"
    study.write_text(STUDY)

    def arguments(out: str) -> list[str]:
        cache = str(tmp_path / "cache")
        return ["compare", str(study), "--out", str(tmp_path / out), "--cache", cache, "--workers", "1"]

    running = subprocess.Popen([FEDLENS, *arguments("killed")], stdout=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 60
    while rounds_done(tmp_path / "killed") < 3 and time.monotonic() < until:
        with suppress(subprocess.TimeoutExpired):
            running.wait(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    status = running.wait()
    before = rounds_done(tmp_path / "killed")
    resumed, calm = fedlens(*arguments("killed")), fedlens(*arguments("calm"))

    assert status == -signal.SIGKILL
    assert 3 <= before < 13
    assert (calm.returncode, resumed.returncode) == (0, 0), calm.stderr + resumed.stderr
    assert results(tmp_path / "killed") == results(tmp_path / "calm")
    (run,) = results(tmp_path / "calm")["runs"]
    assert len(run["rounds"]) == 13
