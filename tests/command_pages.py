"""The help of every command: as the program prints it, and as `docs/commands.md` shows it.

`make docs` (`python -m tests.command_pages`) writes the blocks of the page anew.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
TERMINAL = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
_BLOCK = re.compile(r"<!-- help: (?P<command>[a-z -]+) -->\n(?:```text\n(?P<text>.*?)```\n)?", re.DOTALL)
# Typer reads the width of the terminal when it is imported, hence a process of its own.
_PRINT_ALL = """
import json, typer
from typer.testing import CliRunner
from fedlens.cli import app

def names(name, command):
    yield name
    for sub, inner in getattr(command, "commands", {}).items():
        yield from names(f"{name} {sub}", inner)

def help_of(name):
    return CliRunner().invoke(app, [*name.split()[1:], "--help"], prog_name="fedlens").stdout

print(json.dumps({name: help_of(name) for name in names("fedlens", typer.main.get_command(app))}))
"""


def shown() -> dict[str, str]:
    """The help of each command as the page has it."""
    return {found["command"]: found["text"] or "" for found in _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))}


def printed() -> dict[str, str]:
    """The help that each command and sub-command prints in a terminal of 100 columns."""
    told = subprocess.run(
        [sys.executable, "-c", _PRINT_ALL], env=os.environ | TERMINAL, check=True, capture_output=True, text=True
    ).stdout
    return {name: trimmed(text) for name, text in json.loads(told).items()}


def trimmed(text: str) -> str:
    """`text` without spaces at the ends of lines and empty lines around it."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


def main() -> None:
    """Write the blocks of the page anew."""
    blocks = {name: f"<!-- help: {name} -->\n```text\n{text}```\n" for name, text in printed().items()}
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_BLOCK.sub(lambda found: blocks[found["command"]], page), encoding="utf-8")


if __name__ == "__main__":
    main()
