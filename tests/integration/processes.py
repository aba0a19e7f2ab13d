"""The real server where it can come back after a kill, and the command line as a user runs it."""

import json
import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from fedlens.demo import server_process
from fedlens_server.init import initialise

FEDLENS = Path(sys.executable).parent / "fedlens"


class ServerProcess(server_process.ServerProcess):
    """A server on fixed ports, so that it can come back where it was."""

    @classmethod
    def prepared(cls, folder: Path) -> Self:
        """One with a fresh configuration in `folder`, not started."""
        client_port, admin_port = free_ports(2)
        initialise(folder, port=client_port, admin_port=admin_port)
        return cls(folder)

    def task(self, *arguments: str) -> dict[str, object]:
        """`fedlens task ... --json` against this server."""
        output = run_fedlens("task", *arguments, "--json", "--admin", str(self.folder / "admin.toml"))
        answer: dict[str, object] = json.loads(output)
        return answer


def run_fedlens(*arguments: str) -> str:
    """Run the command line as a user would, without colours and with one thread; gives what it printed."""
    plain = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([FEDLENS, *arguments], capture_output=True, text=True, env=plain)
    assert done.returncode == 0, f"fedlens {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def free_ports(count: int) -> list[int]:
    """TCP ports that nobody listens on, below those that the system gives to connections of other tests meanwhile."""
    found: set[int] = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)
