"""`python -m tests.same [--base COMMIT]`: print the record of the working tree, or compare it with a commit's."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.same.federations import record
from tests.same.tree import REPOSITORY, CommandFailed, Tree

_MOST_SHOWN = 40


def main() -> int:
    """Run the command; the exit status is 1 where the records differ."""
    parser = argparse.ArgumentParser(prog="make same", description=__doc__)
    parser.add_argument("--base", metavar="COMMIT", help="compare with the record of this commit")
    parser.add_argument("--expect", action="append", default=[], metavar="PREFIX", help="entries that may differ")
    arguments = parser.parse_args()
    kotlin = all(shutil.which(tool) for tool in ("mvn", "javac", "npm"))
    with tempfile.TemporaryDirectory(prefix="fedlens-same-") as made:
        folder = Path(made)
        try:
            here = _record(Tree(REPOSITORY), folder / "here", kotlin=kotlin)
            if arguments.base is None:
                for name, text in here.items():
                    print(f"{name} {text}")
                return 0
            tree = Tree.of_commit(arguments.base, folder / "tree")
            base = _record(tree, folder / "base", kotlin=kotlin)
        except (CommandFailed, subprocess.SubprocessError) as error:
            print(f"make same: {error}", file=sys.stderr)
            return 1
    return _compare(base, here, tuple(arguments.expect))


def _record(tree: Tree, folder: Path, *, kotlin: bool) -> dict[str, str]:
    folder.mkdir(parents=True)
    return {entry.name: entry.text for entry in record(tree, folder, kotlin=kotlin)}


def _compare(base: dict[str, str], here: dict[str, str], expected: tuple[str, ...]) -> int:
    differing = [name for name in {**base, **here} if base.get(name) != here.get(name)]
    unexpected = [name for name in differing if not name.startswith(expected or ("\0",))]
    for name in unexpected[:_MOST_SHOWN]:
        print(f"{name}: was {base.get(name, 'not there')}, is {here.get(name, 'not there')}")
    models = sum(name.endswith("/model") for name in here)
    print(
        f"{len(here)} entries, {models} models: {len(unexpected)} differ"
        + (f", and {len(differing) - len(unexpected)} of those that may" if expected else "")
    )
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
