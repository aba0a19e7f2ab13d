"""What is not needed is not imported: no torch in the server, nothing heavy behind `--help`."""

import subprocess
import sys

HEAVY = ("torch", "numpy", "sqlalchemy", "aiohttp")


def _imports_of(statement: str, names: tuple[str, ...]) -> str:
    program = f"import sys\n{statement}\nprint([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_help_imports_nothing_heavy() -> None:
    statement = (
        "from fedlens.cli import main\n"
        "sys.argv = ['fedlens', '--help']\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert ended.code == 0"
    )

    assert _imports_of(statement, HEAVY) == "[]"


def test_the_help_of_each_command_imports_nothing_heavy() -> None:
    statement = (
        "import typer.main\n"
        "from typer.testing import CliRunner\n"
        "from fedlens.cli import app\n"
        "for command in typer.main.get_command(app).commands:\n"
        "    assert CliRunner().invoke(app, [command, '--help']).exit_code == 0, command"
    )

    assert _imports_of(statement, HEAVY) == "[]"


def test_the_server_imports_no_torch() -> None:
    statement = "import fedlens_server.http.app, fedlens_server.daemon, fedlens_server.init, fedlens_server.config"

    assert _imports_of(statement, ("torch", "torchvision", "PIL")) == "[]"
