"""The real server as a process of its own, over plain HTTP on loopback, and what its kernel says about it."""

import asyncio
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlens.admin_client import AdminClient
from fedlens.demo.server_process import ServerProcess
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine.operators.tokens import MAX_PER_MINUTE, hashed
from fedlens_server.init import DATA, make_data
from fedlens_server.store import StateAddress

_CONFIG = """\
[server]
port = 0
data = "data"
{state}
[admin]
port = 0
token_sha256 = "{admin}"
[limits]
{limits}
"""


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    admin_url: str
    admin: AdminClient
    trainer_token: str
    pid: int

    def create_task(self, bundle: Bundle, settings: Mapping[str, Any], name: str = "bench") -> admin_pb2.Task:
        """A task with this bundle, FedAvg, and no limit of time that matters here."""
        whole = {"method": "fedavg", "deadline_s": 600, "seed": "00" * 32} | dict(settings)
        return self.admin.create_task(name, [bundle], json.dumps(whole))

    async def idle(self) -> None:
        """Return once the server has had nothing to do for a moment."""
        before = -1.0
        while (now := cpu_seconds(self.pid)) > before:
            before = now
            await asyncio.sleep(0.5)

    def round_ends(self) -> list[float]:
        """The times at which rounds committed with every member's update, in seconds since the epoch, by its clock."""
        return [found.ended_at for found in whole_rounds(self.admin.show("bench"))]


def whole_rounds(shown: admin_pb2.ShowTaskResponse) -> list[admin_pb2.RoundResult]:
    """The committed rounds of a task.

    Raises:
        RuntimeError: A member has not reported, so that the round did less than the work that is measured.
    """
    rounds = [found for found in shown.rounds if found.state == admin_pb2.ROUND_STATE_COMMITTED]
    for found in rounds:
        lacking = [member for member in found.members if member.state != admin_pb2.MEMBER_STATE_REPORTED]
        if lacking:
            state = admin_pb2.MemberState.Name(lacking[0].state)
            raise RuntimeError(f"round {found.round}: {len(lacking)} of {len(found.members)} are like {state}")
    return rounds


@contextmanager
def serving(folder: Path, limits: str = "", state: StateAddress | None = None) -> Iterator[Server]:
    """Start a server with its state in `folder`, which may hold that of an earlier one, and end it gracefully.

    `limits` are lines of its section `[limits]`. `state` says what of it is elsewhere.
    """
    address = state or StateAddress(folder=folder / DATA)
    elsewhere = "" if address.database is None else f'database = "{address.database}"\n'
    elsewhere += "" if address.bucket is None else f'blobs = "{address.bucket}"'

    folder.mkdir(parents=True, exist_ok=True)
    files = {role: folder / f"{role}.token" for role in ("admin", "trainer")}
    for file in files.values():
        if not file.exists():
            file.write_text(secrets.token_hex(16))
    tokens = {role: file.read_text() for role, file in files.items()}
    (folder / "fedlens.toml").write_text(_CONFIG.format(admin=hashed(tokens["admin"]), limits=limits, state=elsewhere))
    if not (folder / DATA).exists():
        make_data(address, {"trainer": tokens["trainer"]}, max_uses=MAX_PER_MINUTE)
    with ServerProcess(folder) as process:
        yield Server(process.url, process.profile.url, AdminClient(process.profile), tokens["trainer"], process.pid)


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, all threads, user and system, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status_mb(pid: int, key: str) -> float:
    """A line of /proc/<pid>/status that counts kB, as MB."""
    return _counted(pid, "status", key) * 1024 / 1e6


def written_bytes(pid: int) -> int:
    """Bytes that a process has sent to the storage layer."""
    return _counted(pid, "io", "write_bytes")


def _counted(pid: int, file: str, key: str) -> int:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[key].split()[0])
