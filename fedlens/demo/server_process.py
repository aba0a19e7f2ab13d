"""`fedlens serve` as a process of its own: for the demo, the benchmarks and the tests."""

import re
import select
import signal
import subprocess
import sys
import time
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
    """A server with its state in a folder; ends with this process, however that ends.

    Attributes:
        folder: With `fedlens.toml`, tokens and perhaps certificates; the server's log is written there too.
        url: Where clients find it, once it runs.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is started before `start` or `with`."""
        self.folder = folder
        self.url = ""
        self._admin_url = ""
        self._process: subprocess.Popen[str] | None = None
        self._log = folder / "server.log"

    @classmethod
    def fresh(cls, folder: Path) -> Self:
        """One behind HTTPS, on free ports, with tokens and a certificate made on the spot; `folder` is made."""
        initialise(folder, port=0, admin_port=0)
        return cls(folder)

    def __enter__(self) -> Self:
        """As `start`."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `stop`."""
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            PartDied: It ended instead, or is not ready in time.
        """
        arguments = [sys.executable, "-m", "fedlens.demo.leash", "serve", "--config", str(self.folder / CONFIG)]
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        try:
            self.url, self._admin_url = self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> int:
        """End it gracefully and give its exit status; 0 if it does not run."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power failure would."""
        self._end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Of the process; 0 if there is none."""
        return 0 if self._process is None else self._process.pid

    @property
    def ca(self) -> Path:
        """The certificate that clients must trust, if it has one."""
        return self.folder / "ca.pem"

    def token(self, role: str) -> str:
        """The token of `trainer`, `evaluator` or `admin`."""
        return (self.folder / f"{role}.token").read_text(encoding="utf-8").strip()

    @property
    def profile(self) -> Profile:
        """How an operator reaches it."""
        return Profile(url=self._admin_url, token=self.token("admin"), ca=self.ca if self.ca.exists() else None)

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
