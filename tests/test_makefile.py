"""The commands that `make` would run, read from its dry run, which changes nothing."""

import os
import re
import shlex
import shutil
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


@pytest.mark.parametrize("target", ["demo", "test", "test-slow", "test-ci", "check", "bench", "android"])
@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_stale_environment_is_installed_anew_first(target: str, changed: str) -> None:
    commands = dry_run("-W", changed, target)

    assert "-m venv" in commands
    assert "pip install" in commands.split("/bin/pytest")[0]
    assert "-c constraints.txt" in commands and "-e '.[dev]'" in commands


def test_a_missing_environment_is_made_first(tmp_path: Path) -> None:
    assert "-m venv" in dry_run("test", f"VENV={tmp_path}/none")


def test_the_environment_of_another_checkout_is_not_taken(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / "other").mkdir()
    (tmp_path / ".venv").symlink_to("other")

    done = subprocess.run(["make", "install"], cwd=tmp_path, check=False, capture_output=True, text=True)

    assert done.returncode != 0
    assert f"{tmp_path}/.venv is a symbolic link" in done.stderr
    assert list((tmp_path / "other").iterdir()) == []


def test_pip_gets_the_arguments_that_make_got() -> None:
    assert " --some-flag -e '.[dev]'" in dry_run("-W", "pyproject.toml", "test", "PIP_ARGS=--some-flag")


def test_checks_are_style_types_wire_and_fresh_code() -> None:
    commands = dry_run("check")

    wanted = ("ruff' check", "ruff' format --check", "mypy'", "pyright'", "buf' lint", "buf' breaking", "diff -r")
    assert [part for part in wanted if part not in commands] == []


def test_every_test_is_in_one_of_the_parts_of_the_slow_ones() -> None:
    (list_of_parts,) = re.findall(r"^for part in (.*); do$", dry_run("test-slow"), re.MULTILINE)
    parts = [set(REPOSITORY.glob(pattern)) for part in shlex.split(list_of_parts) for pattern in part.split()]

    parts_of = {
        file: sum(not part.isdisjoint([file, *file.parents]) for part in parts)
        for file in (REPOSITORY / "tests").rglob("test_*.py")
    }

    assert {file: count for file, count in parts_of.items() if count != 1} == {}


def test_android_is_tested_before_the_app_is_packaged() -> None:
    commands = dry_run("android", "MVN_ARGS=-T2", "APK_ARGS=--unsigned")

    assert commands.index("mvn --quiet -Ppublish -T2 clean verify") < commands.index("/bin/python' apk.py --unsigned")


@pytest.mark.parametrize(
    ("tools", "runs"),
    [
        (["mvn", "javac", "npm", "apksigner"], ["-j2 --output-sync=target APK_ARGS= android check test-ci-apart"]),
        (["mvn", "javac", "npm"], ["-j2 --output-sync=target APK_ARGS=--unsigned android check test-ci-apart"]),
        (["mvn", "javac"], ["check test-ci-apart"]),
        ([], ["check test-ci-apart"]),
    ],
)
def test_continuous_integration_runs_checks_and_all_tests_and_androids_where_it_can(
    tmp_path: Path, tools: list[str], runs: list[str]
) -> None:
    told = tmp_path / "told"
    for tool in ("make", *tools):
        (tmp_path / tool).write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
        (tmp_path / tool).chmod(0o755)
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))

    done = subprocess.run(
        ["bash", REPOSITORY / ".ci" / "run"], env={"PATH": str(tmp_path)}, check=True, capture_output=True, text=True
    )

    assert told.read_text().splitlines() == [*runs, "test-ci-rest"]
    assert [tool for tool in ("mvn", "javac", "npm") if f"no {tool}" in done.stderr] == [
        tool for tool in ("mvn", "javac", "npm") if tool not in tools
    ]


def test_the_two_halves_of_continuous_integrations_tests_are_all_of_them() -> None:
    apart, rest = (re.findall(r"-m 'not long' (.*)", dry_run(f"test-ci-{half}")) for half in ("apart", "rest"))

    assert [f"--ignore={folder}" for folder in apart[0].split()] == rest[0].split()
    assert all((REPOSITORY / folder).is_dir() for folder in apart[0].split())


def test_continuous_integration_ends_at_the_first_failure() -> None:
    assert "set -euo pipefail" in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8").splitlines()
