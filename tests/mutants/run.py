"""Make each drawn mutant in a copy of a tree and see whether the fast tests that reach it notice.

    python -m tests.mutants.run [--tree DIR] [--results FILE.jsonl] [--only ID ...]
    python -m tests.mutants.run --compare BEFORE AFTER

The first writes a line a mutant, goes on where a stopped run ended, and in the end writes `FILE.json`: whether each was
noticed. The folder `FILE` holds which test reaches which line (`reach.py`); remove it when the tree has changed. What
was renamed since the draw stands in `renamed.json` (`finding.Tree`). The second lists what was noticed before and no
longer is, and what is gone; it fails if there is the former.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import coverage

from tests.mutants.draw import HERE, ROOT
from tests.mutants.finding import Record, Tree
from tests.mutants.reach import OPTIONS, SOURCES

LIMIT_S = 60.0
BUDGET_S = 30.0  # of measured seconds a mutant, so that no slow machine alone reaches the limit
_MADE = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "target")
_PACKAGES = ("fedlens_proto", "fedlens_server", "fedlens_edge_client")


class Reach:
    """The tests that reach a line, the closest first."""

    def __init__(self, folder: Path) -> None:
        found = json.loads((folder / "tests.json").read_text(encoding="utf-8"))
        self._tests: dict[str, tuple[float, list[str]]] = found["tests"]
        self._fixtures: dict[str, float] = found["fixtures"]
        self._data = coverage.CoverageData(str(folder / "reach.sqlite"))
        self._data.read()

    def tests(self, path: str, lines: tuple[int, int]) -> list[str]:
        """As many as fit in the budget: those whose file names the module, then the shortest."""
        by_line = self._data.contexts_by_lineno(path)
        reached = {context for line in range(lines[0], lines[1] + 1) for context in by_line.get(line, ())}
        found = [test for test, (_, shared) in self._tests.items() if test in reached or not reached.isdisjoint(shared)]
        stem = Path(path).stem if Path(path).stem != "__init__" else Path(path).parent.name
        found.sort(key=lambda test: (stem not in test.partition("::")[0], self._tests[test][0]))
        chosen: list[str] = []
        left, made = BUDGET_S, set[str]()
        for test in found:
            own, shared = self._tests[test]
            seconds = own + sum(self._fixtures.get(fixture, 0) for fixture in shared if fixture not in made)
            if seconds <= left:
                chosen.append(test)
                left -= seconds
                made.update(shared)
        return chosen


@contextmanager
def copied(tree: Path) -> Iterator[Path]:
    """A copy of a tree's files, beside it: some tests look for data there."""
    with tempfile.TemporaryDirectory(prefix=f"{tree.name}-mutants-", dir=tree.parent) as folder:
        shutil.copytree(tree, folder, ignore=_MADE, symlinks=True, dirs_exist_ok=True)
        copy = Path(folder)
        # They may be installed from elsewhere.
        _, places = run(copy, ["-c", f"import {', '.join(_PACKAGES)}; print({'.__path__, '.join(_PACKAGES)}.__path__)"])
        if places.count(f"{copy}/") != len(_PACKAGES):
            raise SystemExit(f"some packages are not imported from the copy: {places}")
        yield copy


@contextmanager
def changed(path: Path, source: str) -> Iterator[None]:
    """Another source in a file for a while, and nothing compiled from either is left."""

    def write(raw: bytes) -> None:
        path.write_bytes(raw)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    before = path.read_bytes()
    write(source.encode())
    try:
        yield
    finally:
        write(before)


def run(copy: Path, arguments: list[str], limit_s: float | None = LIMIT_S) -> tuple[int | None, str]:
    """Exit status and output of Python in a copy; status None: it took too long."""
    places = os.pathsep.join(str(copy / part) for part in (".", *SOURCES))
    environment = os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            cwd=copy,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):  # nothing is left of its session
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return status, output.read()


def judge(copy: Path, tree: Tree, reach: Reach, record: Record) -> dict[str, Any]:
    """The result of one mutant: `noticed` is yes, no, timeout, gone or unreached."""
    found = tree.find(record)
    if isinstance(found, str):
        return {"noticed": "gone", "why": found}
    function, operator = found
    tests = reach.tests(function.path, operator.lines)
    if not tests:
        return {"noticed": "unreached"}
    begun = perf_counter()
    while True:
        arguments = ["-m", "pytest", "-x", *OPTIONS, *tests]
        with changed(copy / function.path, operator.mutant(tree.sources[function.path])):
            status, output = run(copy, arguments)
        if status is not None or len(tests) == 1 or run(copy, arguments)[0] is not None:
            break
        tests = tests[: len(tests) // 2]  # the machine is busy: they take as long without the mutant
    failures = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", output, re.MULTILINE)
    return {
        "noticed": {0: "no", None: "timeout"}.get(status, "yes"),
        "by": failures[:1],
        "tests": len(tests),
        "status": status,
        "seconds": round(perf_counter() - begun, 1),
    }


def run_all(root: Path, results: Path, only: list[str] | None) -> None:
    """Judge those that the file has no line of yet, or `only` some, anew."""
    drawn = json.loads((HERE / "drawn.json").read_text(encoding="utf-8"))
    done = read(results) if results.exists() else {}
    wanted = [one for one in drawn if (one["id"] in only if only else one["id"] not in done)]
    folder = results.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    tree = Tree(root, json.loads((HERE / "renamed.json").read_text(encoding="utf-8")))
    with copied(root) as copy:
        if not (folder / "tests.json").exists():
            print(run(copy, [str(HERE / "reach.py"), str(folder.resolve())], limit_s=None)[1])
        reach = Reach(folder)
        for one in wanted:
            found = {"id": one["id"], **judge(copy, tree, reach, one)}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            print(*found.values(), flush=True)
    done = read(results)
    results.with_suffix(".json").write_text(json.dumps(done, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(*(f"{count} {outcome}" for outcome, count in Counter(done.values()).items()), sep=", ")
    for one in drawn:
        if done.get(one["id"]) in ("unnoticed", "gone"):
            print(done[one["id"]], *(one[key] for key in ("id", "path", "function", "change", "statement")), sep="  ")


def read(path: Path) -> dict[str, str]:
    """Of each mutant whether it was noticed, from a file of either kind; the last line counts."""
    if path.suffix == ".json":
        return dict(json.loads(path.read_text(encoding="utf-8")))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = {"yes": "noticed", "timeout": "noticed", "no": "unnoticed"}
    return {line["id"]: names.get(line["noticed"], str(line["noticed"])) for line in lines}


def lost(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Those noticed before and not now, and those that are gone."""
    noticed = [name for name, outcome in sorted(before.items()) if outcome == "noticed"]
    missed = [name for name in noticed if after.get(name, "not run") not in ("noticed", "gone")]
    return missed, [name for name in sorted(before) if after.get(name) == "gone"]


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--only", nargs="+", metavar="ID")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    arguments = parser.parse_args()
    if arguments.compare:
        missed, gone = lost(*map(read, arguments.compare))
        print(f"noticed before and not now: {' '.join(missed) or 'none'}\ngone: {' '.join(gone) or 'none'}")
        raise SystemExit(1 if missed else 0)
    run_all(arguments.tree.resolve(), arguments.results, arguments.only)


if __name__ == "__main__":
    main()
