import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from typer.testing import CliRunner

from fedlens.cli import app


def test_the_version_is_that_of_the_installed_package() -> None:
    result = CliRunner().invoke(app, ["--version"])

    assert (result.exit_code, result.stdout) == (0, f"fedlens {version('fedlens')}\n")


def test_a_shell_completes_the_names_of_commands() -> None:
    asked = {"_FEDLENS_COMPLETE": "complete_bash", "COMP_WORDS": "fedlens com", "COMP_CWORD": "1"}

    completed = subprocess.run(
        [Path(sys.executable).parent / "fedlens"], env=os.environ | asked, check=True, capture_output=True, text=True
    ).stdout

    assert completed.split() == ["compare"]
