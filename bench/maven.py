"""What Maven builds under `android_demo`, for measures that run on a JVM or look at Android's bytes.

A measure that needs it and cannot have it raises `Skipped`, which tells why.
"""

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.row import Skipped

ANDROID = Path(__file__).parent.parent / "android_demo"


@functools.cache
def build() -> Path:
    """The folder `android_demo`, with all modules built and their tests compiled, not run.

    Raises:
        Skipped: There is no Maven or JDK.
    """
    missing = [tool for tool in ("mvn", "javac", "npm") if shutil.which(tool) is None]
    if missing:
        raise Skipped(f"no {' and no '.join(missing)}")
    subprocess.run(["mvn", "--quiet", "-DskipTests", "package"], cwd=ANDROID, check=True)
    return ANDROID


def class_path(module: str, *, tests: bool = False) -> str:
    """The class path of a module of `android_demo` with all that it runs with.

    `tests` adds its test classes, without what only they need: Android's classes alone take 9 MB of any heap.
    """
    target = build() / module / "target"
    paths = [*([str(target / "test-classes")] if tests else []), str(target / "classes")]
    return ":".join([*paths, (target / "classpath.txt").read_text(encoding="utf-8").strip()])


def java(arguments: Sequence[str]) -> str:
    """What `java` prints with these arguments."""
    return subprocess.run(["java", *arguments], check=True, capture_output=True, text=True).stdout
