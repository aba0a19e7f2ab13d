"""The help of the command line, and the cost of asking for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import command_pages

SHOW_HELP = """
from typer.testing import CliRunner
from fedlens.cli import app
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
"""
IMPORT_THE_SERVER = """
import importlib, pkgutil, fedlens_server
for module in pkgutil.walk_packages(fedlens_server.__path__, "fedlens_server."):
    "migrations" in module.name or importlib.import_module(module.name)
"""


def test_the_page_of_commands_shows_every_command_with_the_help_that_the_program_prints() -> None:
    printed = command_pages.printed()

    assert {"fedlens", "fedlens export", "fedlens task model"} <= printed.keys()
    assert command_pages.shown() == printed, "run `make docs`; for a new command add a marker to docs/commands.md first"


def test_the_installed_program_prints_the_help_of_the_page() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "fedlens", "task", "model", "--help"],
        env=os.environ | command_pages.TERMINAL,
        check=True,
        capture_output=True,
        text=True,
    )

    assert command_pages.trimmed(done.stdout) == command_pages.shown()["fedlens task model"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "heavy"),
    [
        (SHOW_HELP, {"torch", "torchvision", "numpy", "sqlalchemy", "aiohttp", "PIL", "sklearn", "plotly"}),
        (IMPORT_THE_SERVER, {"torch", "torchvision", "PIL", "fedlens_edge_client"}),
    ],
)
def test_help_and_the_server_load_nothing_heavy(script: str, heavy: set[str]) -> None:
    command = [sys.executable, "-c", f"{script}\nimport sys; print({heavy} & sys.modules.keys())"]

    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "set()\n"
