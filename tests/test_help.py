"""What the command line says about itself, and what it costs to ask."""

import subprocess
import sys

import pytest

from tests.readme_blocks import help_blocks, help_of

BLOCKS = help_blocks()
HEAVY = ("torch", "torchvision", "numpy", "sqlalchemy", "aiohttp", "PIL", "sklearn", "plotly")


@pytest.mark.parametrize("command", BLOCKS)
def test_the_readme_shows_the_help_that_the_program_prints(command: str) -> None:
    assert BLOCKS[command] == help_of(command), "run `make docs`"


def test_every_command_has_its_help_in_the_readme() -> None:
    listing = (
        "from fedlens.cli import app; import typer\n"
        "def tell(name, command):\n"
        "    print(name)\n"
        "    for sub, inner in getattr(command, 'commands', {}).items():\n"
        "        tell(f'{name} {sub}', inner)\n"
        "tell('fedlens', typer.main.get_command(app))"
    )

    commands = subprocess.run(
        [sys.executable, "-c", listing], check=True, capture_output=True, text=True
    ).stdout.splitlines()

    assert {"fedlens export", "fedlens demo", "fedlens task model"} <= set(commands)
    assert set(commands) == BLOCKS.keys()


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
