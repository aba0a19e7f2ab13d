"""The help of a command imports only what it needs."""

import subprocess
import sys


def test_the_help_of_each_command_imports_nothing_heavy() -> None:
    program = (
        "import sys, typer.main\n"
        "from typer.testing import CliRunner\n"
        "from fedlens.cli import app\n"
        "for command in typer.main.get_command(app).commands:\n"
        "    assert CliRunner().invoke(app, [command, '--help']).exit_code == 0, command\n"
        "print([name for name in ('torch', 'numpy', 'sqlalchemy', 'aiohttp') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"
