"""The real server as a process of its own, and what the tests need around it."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

READY = "fedlens: ready"
FEDLENS = Path(sys.executable).parent / "fedlens"


@dataclass
class ServerProcess:
    """`fedlens serve` on fixed ports, so that it can come back where it was."""

    folder: Path
    client_port: int
    admin_port: int
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    @classmethod
    def prepared(cls, folder: Path) -> "ServerProcess":
        """A server with a fresh configuration in `folder`, not started."""
        client_port, admin_port = free_ports(2)
        ports = ["--port", str(client_port), "--admin-port", str(admin_port)]
        run_fedlens("serve", "--init", str(folder), *ports)
        return cls(folder, client_port, admin_port)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.client_port}"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def token(self, role: str = "trainer") -> str:
        return (self.folder / f"{role}.token").read_text().strip()

    def start(self) -> None:
        """Start it and return when it is ready."""
        log = (self.folder / "server.log").open("a")
        with log:
            self._process = subprocess.Popen(
                [FEDLENS, "serve", "--config", self.folder / "fedlens.toml"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(READY), f"{line!r}; its log: {(self.folder / 'server.log').read_text()[-2000:]}"

    def kill(self) -> None:
        """`kill -9`, then wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; gives the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        status = self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return status

    def task(self, *arguments: str) -> dict[str, object]:
        """`fedlens task ... --json` against this server."""
        output = run_fedlens("task", *arguments, "--json", "--admin", str(self.folder / "admin.toml"))
        answer: dict[str, object] = json.loads(output)
        return answer


def run_fedlens(*arguments: str) -> str:
    """Run the command line as a user would; gives what it printed."""
    done = subprocess.run([FEDLENS, *arguments], capture_output=True, text=True, env=plain_environment())
    assert done.returncode == 0, f"fedlens {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def plain_environment() -> dict[str, str]:
    """This process's environment, for output without colours and with one thread a process."""
    return {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}


def free_ports(count: int) -> list[int]:
    """TCP ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
