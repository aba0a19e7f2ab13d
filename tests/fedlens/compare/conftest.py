"""One small study, that of the docs, carried out once for all tests of what it leaves behind."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

FEDLENS = Path(sys.executable).parent / "fedlens"
PAGE = Path(__file__).parents[3] / "docs" / "compare.md"
_EXAMPLE = re.compile(r"<!-- study -->\n```toml\n(?P<text>.*?)```\n", re.DOTALL)
# With so large a rate every update is a NaN, and the task fails.
BROKEN = """
[methods.broken]
method = "fedavg"
hyper = { lr_extractor = 100.0, lr_classifier = 100.0 }
max_consecutive_abandoned = 1
"""


def example() -> str:
    """The study that the docs show."""
    found = _EXAMPLE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None, "docs/compare.md has lost its study; look for the marker `study` in its history"
    return found["text"]


STUDY = example() + BROKEN


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
