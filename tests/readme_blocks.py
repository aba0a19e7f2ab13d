"""The blocks of README.md that are checked: the commands' help, and the path by hand.

`make docs` (`python -m tests.readme_blocks`) writes the help blocks anew.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
README = REPOSITORY / "README.md"
_HELP = re.compile(r"<!-- help: (?P<command>[a-z -]+) -->\n```text\n(?P<text>.*?)```\n", re.DOTALL)
_BY_HAND = re.compile(r"<!-- by hand -->\n```bash\n(?P<script>.*?)```\n", re.DOTALL)
_TERMINAL = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}


def help_blocks() -> dict[str, str]:
    """What README says is the help of each command."""
    return {found["command"]: found["text"] for found in _HELP.finditer(README.read_text(encoding="utf-8"))}


def by_hand() -> str:
    """README's script of a federation by hand."""
    found = _BY_HAND.search(README.read_text(encoding="utf-8"))
    assert found is not None, "README.md has lost its script; look for the marker `by hand` in its history"
    return found["script"]


def help_of(command: str) -> str:
    """What `command --help` prints in a terminal of 100 columns, without spaces at the ends of lines."""
    program, *sub_commands = command.split()
    printed = subprocess.run(
        [Path(sys.executable).parent / program, *sub_commands, "--help"],
        env=os.environ | _TERMINAL,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines()).strip("\n") + "\n"


def main() -> None:
    """Write the help blocks of README anew."""

    def anew(found: re.Match[str]) -> str:
        return f"<!-- help: {found['command']} -->\n```text\n{help_of(found['command'])}```\n"

    README.write_text(_HELP.sub(anew, README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
