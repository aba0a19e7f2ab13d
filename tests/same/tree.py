"""A tree of sources whose commands are run: the working tree, or a commit written into a folder of its own."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_READY = re.compile(r"ready, clients at (\S+), operators at (\S+)")


class CommandFailed(Exception):
    """A command of a tree failed; the text holds the command and what it printed."""


@dataclass(frozen=True)
class Tree:
    """Sources in a folder; this process's Python runs them, so both trees need the same dependencies."""

    root: Path

    @classmethod
    def of_commit(cls, commit: str, folder: Path) -> "Tree":
        """Write the sources of a commit into `folder`.

        Raises:
            CommandFailed: There is no such commit.
        """
        folder.mkdir(parents=True)
        archive = _done(["git", "-C", str(REPOSITORY), "archive", commit])
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
        return cls(folder)

    def fedlens(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        """Run the command line; gives what it printed.

        Raises:
            CommandFailed: Its exit status is not 0.
        """
        return _done([*self._command, *map(str, arguments)], self._environment, cwd).decode()

    @contextmanager
    def server(self, folder: Path) -> Iterator[str]:
        """A running server with its state in `folder`; gives the address for clients."""
        self.fedlens("serve", "--init", folder, "--port", "0", "--admin-port", "0")
        config = folder / "fedlens.toml"
        # The two trees get the same bundles, which nobody has signed.
        config.write_text(re.sub("(?m)^publishers = .*", "", config.read_text(encoding="utf-8")), encoding="utf-8")
        command = [*self._command, "serve", "--config", str(config)]
        with (folder / "server.log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
            )
        assert process.stdout is not None
        try:
            ready = next((found for line in process.stdout if (found := _READY.search(line))), None)
            if ready is None:
                raise CommandFailed(f"the server of {self.root} ended with status {process.wait()}")
            profile = folder / "admin.toml"
            text = re.sub('(?m)^url = ".*"', f'url = "{ready[2]}"', profile.read_text(encoding="utf-8"))
            profile.write_text(text, encoding="utf-8")
            yield ready[1]
        finally:
            process.terminate()
            process.wait()

    def kotlin(self) -> list[str]:
        """The command that runs the Kotlin client, which is built first, and trusts the server.

        Raises:
            CommandFailed: It cannot be built.
        """
        android = self.root / "android_demo"
        options = ["-DskipTests", f"-Dfedlens.python={sys.executable}"]
        _done(["mvn", "-q", "-pl", "jvm-engine", "-am", *options, "package"], self._environment, android)
        source = android / "jvm-engine" / "src" / "main" / "kotlin" / "org" / "fedlens" / "jvm" / "Options.kt"
        # Earlier trees trust it unasked.
        trust = ["--trust-server"] if "--trust-server" in source.read_text(encoding="utf-8") else []
        target = android / "jvm-engine" / "target"
        path = f"{target / 'classes'}:{(target / 'classpath.txt').read_text(encoding='utf-8').strip()}"
        return ["java", "-Xmx256m", "-Djava.awt.headless=true", "-cp", path, "org.fedlens.jvm.Main", *trust]

    @cached_property
    def _command(self) -> list[str]:
        project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        module, function = project["project"]["scripts"]["fedlens"].split(":")
        # Without -P, packages in the folder from which the comparison is run would come before the tree's.
        return [sys.executable, "-P", "-c", f"from {module} import {function}; {function}()"]

    @cached_property
    def _environment(self) -> dict[str, str]:
        packages = [self.root, *sorted(found.parent for found in self.root.glob("*/fedlens_*"))]
        own = {"NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(map(str, packages))}


def _done(command: Sequence[str], environment: dict[str, str] | None = None, cwd: Path | None = None) -> bytes:
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True)
    if done.returncode:
        printed = (done.stdout + done.stderr)[-4000:].decode(errors="replace")
        raise CommandFailed(f"{' '.join(command)}: status {done.returncode}\n{printed}")
    return done.stdout
