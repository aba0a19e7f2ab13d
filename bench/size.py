"""Lines of Python that hold code, by package: no blank lines, comments or docstrings.

`make size` counts the working tree; `make size BASE=COMMIT` sets it beside a commit.
"""

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator
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
    found: Counter[str] = Counter()
    for name, raw in _committed(commit) if commit else _working():
        if name.endswith(".py") and not name.endswith("_pb2.py"):
            found[name.partition("/")[0]] += code_lines(raw.decode())
    return found


def _committed(commit: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                yield member.name, file.read()


def _working() -> Iterator[tuple[str, bytes]]:
    for name in _git("ls-files", "-co", "--exclude-standard").decode().splitlines():
        if (REPOSITORY / name).is_file():
            yield name, (REPOSITORY / name).read_bytes()


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


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True).stdout


if __name__ == "__main__":
    sys.exit(main())
