"""The lines that each fast test reaches, and the seconds it takes: one run of the tests under coverage.py.

    python -P tests/mutants/reach.py FOLDER

in the root of a tree writes `FOLDER/tests.json` and coverage.py's `FOLDER/reach.sqlite`, a context for each test. A
fixture that several tests share has its own: all of these tests reach what it runs. Child processes are not followed.
"""

import json
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from time import perf_counter

import coverage
import pytest

SOURCES = ("proto", "server", "edge_client", "export", "fedlens")
OPTIONS = ("-q", "-p", "no:cacheprovider", "--hypothesis-seed=0")
# Gradle, Maven and mutants themselves: no mutant of Python code is noticed there.
ELSEWHERE = ("--ignore=tests/android", "--ignore=tests/mutants", "--ignore-glob=*kotlin*")
_CACHED = type(lru_cache(id))


class Recorder:
    """A pytest plugin that gives coverage.py its contexts and keeps outcomes, seconds and shared fixtures."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self._running = ""
        self.failed: set[str] = set()
        self.tests: dict[str, tuple[float, list[str]]] = {}  # seconds but for shared fixtures, and these fixtures
        self.fixtures: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Begin a test's context."""
        for name, module in list(sys.modules.items()):
            for value in vars(module).values() if name.startswith("fedlens") else ():
                # Those of one entry hold what a process can have only once.
                if isinstance(value, _CACHED) and value.cache_info().maxsize != 1:
                    value.cache_clear()
        self._running = item.nodeid
        self._measured.switch_context(item.nodeid)
        self.tests[item.nodeid] = (0.0, [])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        """Make what a shared fixture does a context of its own."""
        if fixturedef.scope == "function":
            return (yield)
        fixture, begun = _name(fixturedef), perf_counter()
        self._measured.switch_context(fixture)
        try:
            return (yield)
        finally:
            self._measured.switch_context(self._running)
            self.fixtures[fixture] = perf_counter() - begun
            seconds, shared = self.tests[self._running]
            self.tests[self._running] = (seconds - self.fixtures[fixture], shared)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Iterator[None]:
        """Note which shared fixtures a test has."""
        found = item._fixtureinfo.name2fixturedefs.values()
        self.tests[item.nodeid][1].extend(_name(defs[-1]) for defs in found if defs[-1].scope != "function")
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep outcome and seconds."""
        seconds, shared = self.tests[report.nodeid]
        self.tests[report.nodeid] = (seconds + report.duration, shared)
        if not report.passed:
            self.failed.add(report.nodeid)


def _name(fixture: pytest.FixtureDef[object]) -> str:
    return f"{fixture.baseid}::{fixture.argname} (fixture)"


def main(folder: Path) -> None:
    """Run all fast tests; those that fail or are skipped count as reaching nothing."""
    measured = coverage.Coverage(
        data_file=str(folder / "reach.sqlite"),
        include=[f"{Path.cwd() / source}/*" for source in SOURCES],
        concurrency=["thread"],
        config_file=False,
    )
    measured.set_option("run:relative_files", True)
    measured.erase()
    recorder = Recorder(measured)
    measured.start()
    pytest.main([*OPTIONS, *ELSEWHERE], plugins=[recorder])
    measured.stop()
    measured.save()
    passed = {test: found for test, found in recorder.tests.items() if test not in recorder.failed}
    (folder / "tests.json").write_text(json.dumps({"tests": passed, "fixtures": recorder.fixtures}, indent=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
