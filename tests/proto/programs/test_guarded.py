"""Random programs between pages without access."""

import signal
import subprocess
import sys

import pytest

from tests.proto.programs import guarded

_SHORT = """
from fedlens_proto.programs import pt2
from tests.proto.programs.guarded import run, torch
from tests.proto.programs.pt2_calls import ATTACKS, program
inputs, calls = ATTACKS["batch norm reads a bias that is too short"][0]
run(pt2.canonical(program(inputs, calls, ["y"])), {name: torch.ones(shape) for name, shape in inputs.items()}, True)
"""


def run(seconds: int, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", guarded.__name__, str(seconds), str(seed)], capture_output=True, text=True, check=False
    )
    print(done.stdout[-300:])

    assert done.returncode == 0, f"{done.stdout[-100:]} {done.stderr[-2000:]}"


@pytest.mark.long
def test_programs_that_pass_the_vetting_touch_nothing_outside_for_a_minute() -> None:
    run(60, seed=1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_programs_that_pass_the_vetting_touch_nothing_outside_for_ten_minutes() -> None:
    run(600, seed=1_000_000)


@pytest.mark.slow
def test_the_guards_notice_what_the_vetting_prevents() -> None:
    done = subprocess.run([sys.executable, "-c", _SHORT], capture_output=True, check=False)

    assert done.returncode == -signal.SIGSEGV, done.stderr
