"""`fedlens serve` in a child process, for the demo, benchmarks and tests."""

import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from fedlens.admin_client import Profile
from fedlens.errors import FedlensError
from fedlens.jobs import exit_text
from fedlens_server.init import CONFIG, initialise

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
LOG_LINES = 5
_READY = re.compile(r"ready, clients at (\S+), operators at (\S+)")


class PartDied(FedlensError):
    """The server ended before its time; the text has its exit status and the last lines of its log."""


class ServerProcess:
    """A server with its state in a folder; it ends with this process, even if that is killed.

    Attributes:
        folder: Holds `fedlens.toml`, tokens, certificates if any, and the server's log.
        url: Address for clients, once the server runs.
        options: Further options of `fedlens serve`.
        launcher: A command that runs the server, such as one that lowers its limits first; empty: none.
    """

    def __init__(self, folder: Path) -> None:
        """The server starts with `start` or `with`."""
        self.folder = folder
        self.url = ""
        self.options: tuple[str, ...] = ()
        self.launcher: tuple[str, ...] = ()
        self._admin_url = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "server.log"

    @classmethod
    def fresh(cls, folder: Path, *, publisher: bool = False) -> Self:
        """A server with HTTPS on free ports and new tokens and certificates, as of `initialise`; makes `folder`."""
        initialise(folder, port=0, admin_port=0, publisher=publisher)
        return cls(folder)

    def __enter__(self) -> Self:
        """As `start`."""
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """As `stop`."""
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            PartDied: It ended, or is not ready in time.
        """
        command = [sys.executable, "-m", "fedlens.demo.child_command", "serve", "--config", str(self.folder / CONFIG)]
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [*self.launcher, *command, *self.options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,  # a reader that takes more than one line would hide the next one from `select`
                start_new_session=True,
            )
        try:
            self.url, self._admin_url = self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> int:
        """End the server gracefully; returns its exit status, 0 if it does not run."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server."""
        self._end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        """The process id; 0 if there is no process."""
        return 0 if self._process is None else self._process.pid

    @property
    def ca(self) -> Path:
        """The file of the certificate that clients must trust; it may not exist."""
        return self.folder / "ca.pem"

    def token(self, role: str) -> str:
        """The token of `trainer`, `evaluator` or `admin`."""
        return (self.folder / f"{role}.token").read_text(encoding="utf-8").strip()

    @property
    def profile(self) -> Profile:
        """The operators' address and token."""
        return Profile(url=self._admin_url, token=self.token("admin"), ca=self.ca if self.ca.exists() else None)

    def check(self) -> None:
        """Check that the server still runs.

        Raises:
            PartDied: It has ended.
        """
        if self._process is not None and (code := self._process.poll()) is not None:
            raise PartDied(f"the server (process {self._process.pid}) {exit_text(code)}{self._end_of_log()}")

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> tuple[str, str]:
        found = self._wait_for(process, _READY)
        return found[1], found[2]

    def _wait_for(self, process: subprocess.Popen[bytes], said: re.Pattern[str]) -> re.Match[str]:
        assert process.stdout is not None
        until = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < until:
            if select.select([process.stdout], [], [], 0.2)[0]:
                line = process.stdout.readline().decode()
                if found := said.search(line):
                    return found
                if not line:
                    process.wait(STOP_TIMEOUT_S)
            self.check()
        raise PartDied(f"the server was not ready after {READY_TIMEOUT_S:.0f} s{self._end_of_log()}")

    def _end_of_log(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        return f"; the end of {self._log}:\n" + "\n".join(lines) if lines else ""

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            status = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        return status
