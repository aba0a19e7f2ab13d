"""What `make` would run: read from its dry run, which changes nothing."""

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


def dry_run(*arguments: str) -> str:
    """The commands of a target, as make prints them instead of running them."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PIP_ARGS"))}
    done = subprocess.run(
        ["make", "-n", *arguments], cwd=REPOSITORY, env=alone, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize("target", ["demo", "test", "test-slow", "check", "bench"])
@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_stale_environment_is_installed_anew_first(target: str, changed: str) -> None:
    commands = dry_run("-W", changed, target)

    assert "-m venv" in commands
    assert "pip install" in commands.split("/bin/pytest")[0]
    assert "-c constraints.txt" in commands and "-e '.[dev]'" in commands


def test_a_missing_environment_is_made_first(tmp_path: Path) -> None:
    assert "-m venv" in dry_run("test", f"VENV={tmp_path}/none")


def test_pip_gets_the_arguments_that_make_got() -> None:
    assert " --some-flag -e '.[dev]'" in dry_run("-W", "pyproject.toml", "test", "PIP_ARGS=--some-flag")


def test_checks_are_style_types_wire_and_fresh_code() -> None:
    commands = dry_run("check")

    wanted = ("ruff' check", "ruff' format --check", "mypy'", "pyright'", "buf' lint", "buf' breaking", "diff -r")
    assert [part for part in wanted if part not in commands] == []


def test_continuous_integration_runs_checks_and_all_tests() -> None:
    lines = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8").splitlines()

    assert lines[-3:] == ["make check", "make test", "make test-slow"]
    assert "set -euo pipefail" in lines
