"""One small study, carried out once for all tests of what it leaves behind."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

FEDLENS = Path(sys.executable).parent / "fedlens"
STUDY = """
name = "small"
title = "A small study"
clients = 4
cohort = 3
seeds = [1, 2]
rounds = 2
paper_columns = ["global_accuracy"]

[photos]
source = "digits"
train_per_class = 20
test_per_class = 5

[regime]
name = "camera-iid"
per_class = 3

[model]
names = ["lenet5"]
input_size = 16
batch = 16

[hyper]
lr_extractor = 0.05
lr_classifier = 0.05

[methods.plain]
method = "fedavg"
published = { global_accuracy = 99.5 }

[methods.small-updates]
method = "fedavg"
codec = "f16"

# A client cannot have so large a rate: every update is a NaN, and the task fails.
[methods.broken]
method = "fedavg"
hyper = { lr_extractor = 100.0, lr_classifier = 100.0 }
max_consecutive_abandoned = 1
"""


@dataclass(frozen=True)
class Carried:
    """A study that was carried out."""

    study: Path
    out: Path
    arguments: list[str]
    printed: str
    status: int


def fedlens(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would, with plain output."""
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.run([FEDLENS, *arguments], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="session")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    """Three methods and two seeds, of which one method fails."""
    folder = tmp_path_factory.mktemp("study")
    study = folder / "small.toml"
    study.write_text(STUDY)
    arguments = ["compare", str(study), "--out", str(folder / "out"), "--cache", str(folder / "cache")]
    done = fedlens(*arguments)
    return Carried(study, folder / "out", arguments, done.stdout + done.stderr, done.returncode)
