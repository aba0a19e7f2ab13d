"""The help of the command line, and the cost of asking for it."""

import os
import subprocess
import sys
from pathlib import Path

from tests import command_pages

HEAVY = ("torch", "torchvision", "numpy", "sqlalchemy", "aiohttp", "PIL", "sklearn", "plotly")


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


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from fedlens.cli import app; "
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0; "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout

    assert loaded.strip() == "[]"


def test_the_servers_package_loads_no_torch() -> None:
    script = (
        "import importlib, pkgutil, sys, fedlens_server\n"
        "for module in pkgutil.walk_packages(fedlens_server.__path__, 'fedlens_server.'):\n"
        "    'migrations' in module.name or importlib.import_module(module.name)\n"
        "print([name for name in ('torch', 'torchvision', 'PIL', 'fedlens_edge_client') if name in sys.modules])"
    )

    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout

    assert loaded.strip() == "[]"
