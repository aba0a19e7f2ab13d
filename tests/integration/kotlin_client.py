"""The Kotlin client in a process of its own: built, started, watched, and killed when its time has come."""

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from bench import maven
from tests.integration.deaths import Death as Death
from tests.integration.deaths import Fate as Fate

ANDROID = maven.ANDROID
# Photos as the decoders under test have decoded them; see `tests/phone_photos.py`.
PHOTOS = ANDROID / "sdk" / "target" / "phone-photos"
MAIN = "org.fedlens.jvm.Main"
BUILD_TIMEOUT_S = 900
# The process compiles what it needs for a second or two; more threads than one would only be in each other's way.
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m", "-Djava.awt.headless=true")
OnLine = Callable[[dict[str, Any]], None]


@cache
def build() -> None:
    """Build the Kotlin client and have its decoders decode `PHOTOS`, or skip the test.

    Tests run in several processes: the first builds, the others wait, and none builds again what is newer than all of
    its sources, such as what `make android` has left.
    """
    if reason := maven.missing():
        pytest.skip(f"the Kotlin client is built with Maven: {reason}")
    with (ANDROID / "pom.xml").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A folder's own time tells of deleted files.
        changed = max(source.stat().st_mtime for source in _sources())
        built = [PHOTOS / "photos.json", ANDROID / "jvm-engine" / "target" / "classpath.txt"]
        if not all(file.exists() and file.stat().st_mtime > changed for file in built):
            begun = time.time()
            rmtree(PHOTOS, ignore_errors=True)
            decoders = ["-Dtest=BitmapDecoderTest,ImageIoDecoderTest", "-Dsurefire.failIfNoSpecifiedTests=false"]
            python = f"-Dfedlens.python={sys.executable}"
            command = ["mvn", "-q", "-pl", "jvm-engine", "-am", *decoders, python, "package"]
            done = subprocess.run(command, cwd=ANDROID, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
            assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
            # Maven leaves a class path as it is if it would be the same.
            os.utime(built[-1], (begun, begun))


def _sources() -> Iterator[Path]:
    yield from (ANDROID / "pom.xml", ANDROID.parent / "tests" / "phone_photos.py")
    yield from (ANDROID.parent / "proto").rglob("*.proto")
    yield from (ANDROID.parent / "proto").rglob("*.py")
    for module in ("vendor", "sdk", "jvm-engine"):
        for folder in (ANDROID / module).rglob("src"):
            yield from folder.rglob("*")
        yield from (ANDROID / module).rglob("pom.xml")


@cache
def class_path() -> str:
    """The class path of the Kotlin client, which is built if need be; skips the test where it cannot be."""
    build()
    if reason := maven.no_runtime():
        pytest.skip(f"the Kotlin client has no runtime here: {reason}")
    return maven.class_path("jvm-engine")


@dataclass
class Life:
    """The output of one process.

    Attributes:
        status: Its exit status; negative: the signal that ended it.
        events: Its events, in order.
        states: Its states, in order.
        errors: What it wrote to stderr.
    """

    status: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    errors: str = ""

    def told(self, event: str) -> list[dict[str, Any]]:
        """Its events of one kind."""
        return [found for found in self.events if found["event"] == event]


async def live(
    *options: str | Path, fate: Fate | None = None, on_line: OnLine = lambda line: None, jvm: tuple[str, ...] = ()
) -> Life:
    """Run the client until it ends."""
    command = ["java", *JVM, *jvm, "-cp", await asyncio.to_thread(class_path), MAIN, *map(str, options)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=1 << 20
    )
    assert process.stdout is not None
    assert process.stderr is not None
    life, fate = Life(), fate or Fate()

    def kill() -> None:
        if process.returncode is None:
            process.kill()

    fate.kill = kill
    try:
        errors = asyncio.create_task(process.stderr.read())
        async for raw in process.stdout:
            line = json.loads(raw)
            (life.events if "event" in line else life.states).append(line)
            on_line(line)
            fate.step(line.get("event") or line["state"])
        life.errors = (await errors).decode()
        life.status = await process.wait()
    finally:
        kill()
        await process.wait()
    return life
