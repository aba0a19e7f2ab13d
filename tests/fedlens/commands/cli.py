"""The command line in this process."""

from functools import cache

from typer import testing
from typer.testing import CliRunner, Result

from fedlens.cli import app

# It would make all commands anew for each call, which takes longer than most of them.
testing._get_command = cache(testing._get_command)


def fedlens(*arguments: object, **environment: str | None) -> Result:
    """Run a command on a wide terminal."""
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "300"} | environment)


def error_text(result: Result, status: int = 1) -> str:
    """The error text of a command that ends with this status, in one line."""
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())
