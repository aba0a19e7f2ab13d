"""How many lines of Python do something: without blank lines, comments and docstrings, by package.

`make size` counts the working tree; `make size BASE=COMMIT` sets it beside a commit.
"""

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PRODUCT = ("fedlens", "proto", "server", "edge_client", "export")
_NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
)


def code_lines(source: str) -> int:
    """The number of lines that hold code, of which docstrings are none."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def sizes(commit: str | None = None) -> Counter[str]:
    """Code lines by top folder, of the working tree or of a commit; generated code is left out.

    Raises:
        CalledProcessError: There is no such commit.
    """
    listed = _git("ls-tree", "-r", "--name-only", commit) if commit else _git("ls-files", "-co", "--exclude-standard")
    found: Counter[str] = Counter()
    for name in listed.splitlines():
        if not name.endswith(".py") or name.endswith("_pb2.py"):
            continue
        if commit is None and not (REPOSITORY / name).is_file():
            continue
        text = _git("show", f"{commit}:{name}") if commit else (REPOSITORY / name).read_text(encoding="utf-8")
        found[name.partition("/")[0]] += code_lines(text)
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="make size", description=__doc__)
    parser.add_argument("--base", metavar="COMMIT", help="a commit to compare with")
    base = parser.parse_args().base
    now, then = sizes(), sizes(base) if base else Counter[str]()
    groups = {folder: (folder,) for folder in sorted(now | then)} | {"product": PRODUCT}
    for name, folders in groups.items():
        here, there = (sum(counted[folder] for folder in folders) for counted in (now, then))
        print(f"{name:14} {here:8,}" + (f" {here - there:+8,}" if base else ""))
    return 0


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
