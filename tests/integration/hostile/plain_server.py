"""The real server over plain HTTP on loopback, and connections to it from many addresses of this machine."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.server_process import status_mb
from fedlens.admin_client import AdminClient
from fedlens.demo.server_process import ServerProcess

_TLS = 'certfile = "server.pem"\nkeyfile = "server.key"\n'
_DATA = 'data = "data"'
# Memory that glibc keeps for each thread, though it is free, would hide what the server holds.
_TIGHT = ("env", "MALLOC_ARENA_MAX=1", "MALLOC_TRIM_THRESHOLD_=131072")
_LOWER_FILES = 'ulimit -n "$0" && exec "$@"'
_REQUESTS = re.compile(r'fedlens_requests_total\{code="([^"]+)",endpoint="([^"]+)"\} (\S+)')


@dataclass(frozen=True)
class Reply:
    """An answer; names of headers are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def is_last(self) -> bool:
        """True if the server closes the connection after it."""
        return self.headers.get("connection") == "close"


@dataclass(frozen=True)
class Footprint:
    """What the kernel says about a server: resident memory and open descriptors."""

    resident_mb: float
    descriptors: int


@dataclass(frozen=True)
class PlainServer:
    """A running server without TLS."""

    process: ServerProcess
    admin: AdminClient

    @property
    def log(self) -> str:
        return (self.process.folder / "server.log").read_text(encoding="utf-8")

    def footprint(self) -> Footprint:
        pid = self.process.pid
        return Footprint(status_mb(pid, "VmRSS"), len(list(Path(f"/proc/{pid}/fd").iterdir())))

    async def metrics(self) -> str:
        url = self.process.profile.url
        token = f"Authorization: Bearer {self.process.token('admin')}\r\n"
        async with connected(url) as (reader, writer):
            writer.write(f"GET /metrics HTTP/1.1\r\nHost: x\r\n{token}\r\n".encode())
            return (await reply(reader)).body.decode()

    async def answers(self, endpoint: str) -> dict[str, int]:
        """The requests of an endpoint, such as `PUT .../update`, by the code that they were answered with."""
        found = _REQUESTS.findall(await self.metrics())
        return {code: int(float(count)) for code, where, count in found if where.endswith(endpoint)}


@contextmanager
def plain_server(
    folder: Path, *, files: int | None = None, options: tuple[str, ...] = (), server: str = "", **limits: Any
) -> Iterator[PlainServer]:
    """A server of this test's own.

    Args:
        folder: To be made.
        files: The descriptors that the process may open; None: as many as this one.
        options: Of `fedlens serve`.
        server: Further lines of section `[server]`.
        limits: Keys of section `[limits]`.
    """
    process = ServerProcess.fresh(folder)
    config = folder / "fedlens.toml"
    text = config.read_text().replace(_TLS, "").replace(_DATA, f"{_DATA}\n{server}")
    config.write_text(f"{text}\n[limits]\n" + "".join(f"{key} = {value}\n" for key, value in limits.items()))
    process.ca.unlink()
    process.options = options
    process.launcher = _TIGHT if files is None else ("sh", "-c", _LOWER_FILES, str(files), *_TIGHT)
    with process:
        yield PlainServer(process, AdminClient(process.profile))


@asynccontextmanager
async def connected(url: str, source: str = "127.0.0.1") -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
    """A connection from an address of this machine; it breaks at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def address(index: int) -> str:
    """One of the addresses from which strangers come; all are this machine's."""
    return f"127.0.{1 + index // 250 % 250}.{1 + index % 250}"


async def reply(reader: asyncio.StreamReader, method: str = "GET") -> Reply:
    """The next answer on a connection.

    Raises:
        asyncio.IncompleteReadError, ConnectionError: The server has closed the connection.
    """
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rest = head.split("\r\n")
        status = int(line.split(" ")[1])
        if status >= 200:
            break
    named = (each.split(": ", 1) for each in rest if each)
    headers = {name.lower(): value for name, value in named}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    elif method != "HEAD" and status not in (204, 304):
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Reply(status, body, headers)


async def exchange(url: str, raw: bytes, method: str = "POST", source: str = "127.0.0.1") -> Reply:
    """The answer to one request, sent over a connection of its own."""
    async with connected(url, source) as (reader, writer):
        writer.write(raw)
        return await reply(reader, method)
