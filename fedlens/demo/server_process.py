"""The demo's server: `fedlens serve` as a process of its own."""

import re
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from fedlens.admin_client import Profile
from fedlens_server.init import CONFIG, initialise

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
LOG_LINES = 5
_READY = re.compile(r"ready, clients at (\S+), operators at (\S+)")


class PartDied(Exception):
    """A process of the demo ended before its time; the text says which, how, and what it said last."""


class ServerProcess:
    """A server with fresh state behind HTTPS, on free ports, with tokens and a certificate made on the spot."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made; nothing is started before `with`."""
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._log = folder / "server.log"
        self.url = ""
        self._admin_url = ""
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Start it and wait until it answers.

        Raises:
            PartDied: It ended instead, or is not ready in time.
        """
        initialise(self._folder, port=0, admin_port=0)
        arguments = [sys.executable, "-m", "fedlens.demo.leash", "serve", "--config", str(self._folder / CONFIG)]
        with ExitStack() as stack:
            log = stack.enter_context(self._log.open("w", encoding="utf-8"))
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
            stack.callback(self._end)
            self.url, self._admin_url = self._wait_until_ready(self._process)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self._open.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return 0 if self._process is None else self._process.pid

    @property
    def ca(self) -> Path:
        """The certificate that clients must trust."""
        return self._folder / "ca.pem"

    def token(self, role: str) -> str:
        """Enrolment token of `trainer` or `evaluator`."""
        return (self._folder / f"{role}.token").read_text(encoding="utf-8").strip()

    @property
    def profile(self) -> Profile:
        """How an operator reaches it."""
        return Profile(url=self._admin_url, token=self.token("admin"), ca=self.ca)

    def check(self) -> None:
        """See that it still runs.

        Raises:
            PartDied: It does not.
        """
        if self._process is not None and (code := self._process.poll()) is not None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            raise PartDied(f"the server (process {self._process.pid}) {how}{self._last_words()}")

    def _wait_until_ready(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        assert process.stdout is not None
        until = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < until:
            if select.select([process.stdout], [], [], 0.2)[0]:
                line = process.stdout.readline()
                if found := _READY.search(line):
                    return found[1], found[2]
                if not line:
                    process.wait(STOP_TIMEOUT_S)
            self.check()
        raise PartDied(f"the server was not ready after {READY_TIMEOUT_S:.0f} s{self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        return f"; the end of {self._log}:\n" + "\n".join(lines) if lines else ""

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
