"""Sockets: listening, limits of connections, and closing in good order."""

import asyncio
import errno
import math
import os
import resource
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from fedlens_server.config import ConfigError
from fedlens_server.http.responses import Connection
from fedlens_server.http.service import SERVICE, SIDE
from fedlens_server.http.sockets.addresses import Addresses

# Files that are no connections: the database, blobs, sockets, and what a burst takes.
RESERVED_FILES = 1024
MAX_OPERATORS = 100
MAX_ACCEPTED = WAITING = 128
# A connection too many has its file for four turns of the loop, and each turn accepts anew: accepted, made a transport,
# counted and aborted, closed. The other half of the reserve is for files that are no connections.
_SHARE_OF_A_TURN = 8
# A handshake is two round trips and some kB: even on a bad line that takes a few seconds. asyncio would wait for 60.
HANDSHAKE_S = 10
SOCKET_MODE = 0o660
_SOCKET_IS = (
    "it must be a path with nothing, or a socket on which no process listens, in a folder that the server may write"
)


class _Server(web.Server):
    """Connections, of which the number is bounded; many without a request do not keep others out."""

    most = MAX_OPERATORS
    most_of_address = MAX_OPERATORS
    addresses = Addresses()
    context: ssl.SSLContext | None = None
    stall_s = 0.0  # for which a client may take nothing of an answer; 0: as long as the system waits

    def __init__(self, made: web.Server) -> None:
        super().__init__(made.request_handler, request_factory=made.request_factory, loop=made._loop, **made._kwargs)
        self._by_address: defaultdict[str, dict[RequestHandler, asyncio.Transport]] = defaultdict(dict)
        # Of limited connections. Asked for it at its end, a transport of TLS may have forgotten it.
        self._addresses: dict[RequestHandler, str] = {}

    def __call__(self) -> Connection | SSLProtocol:  # type: ignore[override]  # asyncio takes any protocol
        handler = Connection(self, loop=self._loop, **self._kwargs)
        return handler if self.context is None else _Tls(self, handler, self.context)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        if handler in self._connections:
            return  # since it was accepted; now its handshake is over
        super().connection_made(handler, transport)
        _keep_to(self.most, self._connections, handler)
        if address := self._limited(transport):
            self._addresses[handler] = address
            of_address = self._by_address[address]
            of_address[handler] = transport
            _keep_to(self.most_of_address, of_address, handler)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        if address := self._addresses.pop(handler, ""):
            del self._by_address[address][handler]
            if not self._by_address[address]:
                del self._by_address[address]
        super().connection_lost(handler, exc)

    def _limited(self, transport: asyncio.Transport) -> str:
        peer = transport.get_extra_info("peername")
        return self.addresses.limited(peer[0]) if isinstance(peer, tuple) else ""


class _Tls(SSLProtocol):
    """As asyncio has it, but counted from the accept on: a connection may never begin its handshake."""

    def __init__(self, server: _Server, handler: Connection, context: ssl.SSLContext) -> None:
        # Not `loop.start_tls`: it hands on bytes before it returns the transport that they came from.
        super().__init__(server._loop, handler, context, None, True, ssl_handshake_timeout=HANDSHAKE_S)  # type: ignore[arg-type]  # nobody waits
        self._server, self._handler = server, handler

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._handler.transport = transport  # a stop closes it, also before the handshake is over
        self._server.connection_made(self._handler, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)  # which tells the handler only after a handshake
        self._server.connection_lost(self._handler, exc)


def _keep_to(most: int, connections: Mapping[RequestHandler, asyncio.Transport], newest: RequestHandler) -> None:
    """Of more connections than that, close the oldest without a request, or else the newest."""
    if len(connections) > most:
        waiting = (each for each, of in connections.items() if _is_idle(each) and not of.is_closing())
        connections[next(waiting, newest)].abort()


def _is_idle(handler: RequestHandler) -> bool:
    return isinstance(handler, Connection) and handler.is_idle


class Runner(web.AppRunner):
    """aiohttp's runner, with connections that answer everything in the protocol's own form."""

    async def _make_server(self) -> web.Server:
        server = _Server(await super()._make_server())
        if SIDE in self.app:
            service = self.app[SERVICE]
            limits = service.config.limits
            service.servers[self.app[SIDE]] = server
            server.stall_s = limits.upload_stall_s
            if self.app[SIDE] == "clients":
                server.most = limits.max_connections or most_connections()
                server.most_of_address = limits.max_connections_per_address
                server.addresses = service.addresses
        return server


def most_connections() -> int:
    """As many connections as the process may open files, less those that it needs itself."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft_limit - RESERVED_FILES, soft_limit // 2)


def _accepted_at_once() -> int:
    """Connections that one turn of the loop accepts before anybody counts them."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(MAX_ACCEPTED, (soft_limit - most_connections()) // _SHARE_OF_A_TURN))


async def _start(site: web.BaseSite, stall_s: float = 0.0) -> None:
    """Listen; the kernel holds `WAITING` connections, also where asyncio would have it hold only those of a turn."""
    await site.start()
    assert isinstance(site._server, asyncio.Server)
    for each in site._server.sockets:
        with socket.fromfd(each.fileno(), each.family, each.type) as listening:
            listening.listen(WAITING)
            if stall_s and hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                # Accepted sockets have it, too. The kernel alone sees how far an answer has come, sendfile's included.
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1000 * stall_s))


async def close(runners: Sequence[web.AppRunner], within_s: float) -> None:
    """Close one runner after the other; requests that have begun have `within_s` seconds in all."""
    clock = asyncio.get_running_loop().time
    until = clock() + within_s
    for runner in runners:
        runner._shutdown_timeout = max(0.0, until - clock())
        await runner.cleanup()


async def listen(runner: web.AppRunner, host: str, port: int, context: ssl.SSLContext | None, name: str) -> str:
    """Accept connections; returns the URL, with the port that the system chose where `port` is 0.

    Raises:
        ConfigError: The address is taken or is none of this machine; `name` is that of its section in the config.
    """
    assert isinstance(runner.server, _Server)
    runner.server.context = context
    site = web.TCPSite(runner, host, port, backlog=_accepted_at_once())
    try:
        await _start(site, runner.server.stall_s)
    except OSError as error:
        # asyncio's text repeats the address; it gives no number where it has left out all that are not this machine's.
        if isinstance(error, socket.gaierror):
            key, reason = "host", error.strerror
        elif error.errno in (None, errno.EADDRNOTAVAIL):
            key, reason = "host", "this machine has no such address"
        else:
            key, reason = "port", os.strerror(error.errno)
        raise ConfigError(f"{name}.{key}: cannot listen on {host}:{port}: {reason}") from error
    taken = runner.addresses[0][1]
    written = f"[{host}]" if ":" in host else host
    return f"{'https' if context else 'http'}://{written}:{taken}"


async def listen_on_socket(runner: web.AppRunner, path: Path, key: str) -> str:
    """Accept connections on a Unix socket, which takes the place of one that a killed server left; returns `unix:PATH`.

    Raises:
        ConfigError: The socket cannot be made, or a process listens on it; `key` names it as in the config.
    """
    try:
        site = _SocketSite(runner, path, _bound(path))
    except OSError as error:
        raise ConfigError(f"{key}: cannot listen on {path}: {error.strerror or error}; {_SOCKET_IS}") from error
    await _start(site)
    return f"unix:{path}"


def _bound(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and _is_abandoned(path):
            path.unlink()
        elif path.exists() and not path.is_socket():
            raise FileExistsError(errno.EEXIST, "a file or folder of this name is there")
        bound.bind(str(path))
        path.chmod(SOCKET_MODE)
    except OSError:
        bound.close()
        raise
    return bound


def _is_abandoned(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


class _SocketSite(web.SockSite):
    def __init__(self, runner: web.AppRunner, path: Path, listening: socket.socket) -> None:
        super().__init__(runner, listening, backlog=_accepted_at_once())
        self._path = path

    async def stop(self) -> None:
        # Before it is closed: until then no other server takes its place, and afterwards the file may be another's.
        self._path.unlink(missing_ok=True)
        await super().stop()
