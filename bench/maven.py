"""Maven's builds of `android_demo`, for measures that run on a JVM or look at Android's bytes.

A measure that needs it and cannot have it raises `Skipped`, which tells why.
"""

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.row import Skipped

ANDROID = Path(__file__).parent.parent / "android_demo"


def missing() -> str:
    """The programs that a build needs and that are missing; empty: none."""
    return " and ".join(f"no {tool}" for tool in ("mvn", "javac", "npm") if shutil.which(tool) is None)


@functools.cache
def build() -> Path:
    """The folder `android_demo`, with all modules built and their tests compiled, not run.

    Raises:
        Skipped: There is no Maven, npm or JDK.
    """
    if reason := missing():
        raise Skipped(reason)
    subprocess.run(["mvn", "--quiet", "-DskipTests", "package"], cwd=ANDROID, check=True)
    return ANDROID


def class_path(module: str, *, tests: bool = False) -> str:
    """The class path of a built module of `android_demo` with all that it runs with.

    `tests` adds its test classes, without what only they need: Android's classes alone take 9 MB of any heap.
    """
    target = ANDROID / module / "target"
    paths = [*([str(target / "test-classes")] if tests else []), str(target / "classes")]
    return ":".join([*paths, (target / "classpath.txt").read_text(encoding="utf-8").strip()])


def no_runtime() -> str:
    """The reason why the built `jvm-engine` cannot run programs on this machine; empty: it can."""
    reason = ANDROID / "jvm-engine" / "target" / "classes" / "org" / "fedlens" / "jvm" / "native" / "reason.txt"
    return reason.read_text(encoding="utf-8").strip() if reason.exists() else ""


def java(arguments: Sequence[str]) -> str:
    """The output of `java` with these arguments."""
    return subprocess.run(["java", *arguments], check=True, capture_output=True, text=True).stdout
