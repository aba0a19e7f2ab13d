import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import pytest

from fedlens.commands.options import EngineChoice
from fedlens_edge_client.engines.choice import EngineName
from tests.fedlens.commands.cli import error_text, fedlens


def test_the_version_is_that_of_the_installed_package() -> None:
    result = fedlens("--version")

    assert (result.exit_code, result.stdout) == (0, f"fedlens {version('fedlens')}\n")


def test_a_shell_completes_the_names_of_commands() -> None:
    asked = {"_FEDLENS_COMPLETE": "complete_bash", "COMP_WORDS": "fedlens com", "COMP_CWORD": "1"}

    completed = subprocess.run(
        [Path(sys.executable).parent / "fedlens"], env=os.environ | asked, check=True, capture_output=True, text=True
    ).stdout

    assert completed.split() == ["compare"]


def test_commands_offer_every_engine() -> None:
    assert get_args(EngineChoice) == tuple(EngineName)


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


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("serve", "--port", "x"), "Invalid value for '--port': found 'x', must be a whole number"),
        (("serve", "--port", "70000"), "'--port': found '70000', must be at most 65535"),
        (("serve", "--hour-lasts", "0"), "'--hour-lasts': found '0', must be at least 0.1"),
        (("fleet", "--beta", "few"), "'--beta': found 'few', must be a number"),
        (("token", "new", "a", "--role", "boss"), "'--role': 'boss' is not one of 'trainer', 'evaluator'"),
    ],
)
def test_a_wrong_value_of_an_option_is_told_in_our_words(command: tuple[str, ...], told: str) -> None:
    said = error_text(fedlens(*command), status=2)

    assert told in said
    assert "Input should" not in said and "Value error" not in said


@pytest.mark.parametrize(
    "command",
    [
        ["export", "--model", "lenet5", "--classes-from", "photos"],
        ["fleet", "--server", "https://127.0.0.1:1", "--photos", "photos"],
        ["demo"],
    ],
)
def test_a_seed_that_no_generator_takes_is_refused(command: list[str]) -> None:
    assert "4294967295" in error_text(fedlens(*command, "--seed", 1 << 32), status=2)


def run(*arguments: str, output: int = subprocess.PIPE, **variables: str) -> "subprocess.CompletedProcess[str]":
    """The command as a process."""
    program = [Path(sys.executable).parent / "fedlens", *arguments]
    return subprocess.run(program, env=os.environ | variables, stdout=output, stderr=subprocess.PIPE, text=True)


def test_a_full_disk_for_the_output_is_told_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = run("--help", output=full.fileno())

    assert done.returncode == 1
    assert done.stderr == "fedlens: the output cannot be written: No space left on device\n"


def test_a_terminal_that_lacks_letters_shows_the_others(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    link = ("link", "--server", "https://fl.example.org", "--token-file", str(tmp_path / "token"), "--qr")

    done = run(*link, PYTHONIOENCODING="latin-1")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("https://fl.example.org/join#token=abc\n")


def test_a_table_needs_no_output() -> None:
    program = (
        "import sys\nsys.stdout = None\nfrom fedlens.reports.tables import print_table\nprint_table(['a'], [['b']])"
    )

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr == ""
