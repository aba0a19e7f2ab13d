"""The changes that CONTRIBUTING.md shows are whole: they apply to this tree, and the tests that they add pass."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_repository import PACKAGES, REPOSITORY, kept_files

PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
_CHANGE = re.compile(
    r"^### (?P<title>[^\n]+): (?P<files>\d+) files\n.*?```diff\n(?P<diff>.*?)```\n", re.DOTALL | re.MULTILINE
)
CHANGES = {found["title"]: found for found in _CHANGE.finditer(PAGE)}
NAMES = ("A method", "An objective", "An endpoint", "A task setting")


def test_the_page_shows_the_four_changes() -> None:
    assert tuple(CHANGES) == NAMES


def _touched(change: re.Match[str]) -> list[str]:
    return re.findall(r"^\+\+\+ b/(\S+)$", change["diff"], re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_change_of_the_page_applies_to_this_tree_and_touches_as_many_files_as_it_says(name: str) -> None:
    change = CHANGES[name]

    subprocess.run(["git", "apply", "--check", "-"], cwd=REPOSITORY, input=change["diff"], text=True, check=True)

    assert len(_touched(change)) == int(change["files"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_change_of_the_page_passes_its_own_test(name: str, tmp_path: Path) -> None:
    change = CHANGES[name]
    touched = _touched(change)
    for path in kept_files():
        name_here = path.relative_to(REPOSITORY)
        copy = tmp_path / name_here
        if path.suffix != ".kt":
            copy.parent.mkdir(parents=True, exist_ok=True)
            if str(name_here) in touched:
                copy.write_bytes(path.read_bytes())
            else:
                copy.symlink_to(path)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=change["diff"], text=True, check=True)

    tests = [path for path in touched if path.startswith("tests/")]
    packages = [str(tmp_path / folder.parent.relative_to(REPOSITORY)) for folder in PACKAGES.values()]
    done = subprocess.run(
        # A shorter limit than this test's own, so that what hangs shows its stack.
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=200", *tests],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(packages)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
