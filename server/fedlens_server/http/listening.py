"""Sockets and TLS: listening, and closing in good order."""

import asyncio
import resource
import ssl
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from fedlens_server.config import ConfigError
from fedlens_server.http.responses import Connection
from fedlens_server.http.service import SERVICE, SIDE

# Files that are no connections: the database, blobs, sockets, and what a burst takes.
RESERVED_FILES = 512
MAX_OPERATORS = 100


class _Server(web.Server):
    """Connections, of which the number is bounded; many without a request do not keep others out."""

    most: int

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) > self.most:
            waiting = (each for each, of in self._connections.items() if _is_idle(each) and not of.is_closing())
            self._connections[next(waiting, handler)].abort()


def _is_idle(handler: RequestHandler) -> bool:
    return isinstance(handler, Connection) and handler.is_idle


class Runner(web.AppRunner):
    """aiohttp's runner, with connections that answer everything in the protocol's own form."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        server = _Server(made.request_handler, request_factory=made.request_factory, loop=made._loop, **made._kwargs)
        server.most = MAX_OPERATORS
        if SIDE in self.app:
            service = self.app[SERVICE]
            service.servers[self.app[SIDE]] = server
            if self.app[SIDE] == "clients":
                server.most = service.config.limits.max_connections or most_connections()
        return server


def most_connections() -> int:
    """As many connections as the process may open files, less those that it needs itself."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft_limit - RESERVED_FILES, soft_limit // 2)


async def close(runners: Sequence[web.AppRunner], within_s: float) -> None:
    """Close one runner after the other; requests that have begun have `within_s` seconds in all."""
    clock = asyncio.get_running_loop().time
    until = clock() + within_s
    for runner in runners:
        runner._shutdown_timeout = max(0.0, until - clock())
        await runner.cleanup()


def tls(certfile: Path, keyfile: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate.

    Raises:
        ConfigError: The files are no certificate with its key, or the key is encrypted.
    """

    def refuse() -> str:
        # Without it OpenSSL would ask on the terminal, and a service would never get past this line.
        raise ConfigError(f"server.keyfile: {keyfile} is encrypted; give a key without a passphrase (mode 0600)")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certfile, keyfile, password=refuse)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"server.certfile, server.keyfile: {certfile} and {keyfile} are no certificate with its key: {error}"
        ) from error
    return context


async def listen(runner: web.AppRunner, host: str, port: int, context: ssl.SSLContext | None, key: str) -> str:
    """Accept connections; returns the URL, with the port that the system chose where `port` is 0.

    Raises:
        ConfigError: The address is taken or is none of this machine; `key` names it as in the config.
    """
    site = web.TCPSite(runner, host, port, ssl_context=context, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"{key}: cannot listen on {host}:{port}: {error.strerror or error}") from error
    taken = runner.addresses[0][1]
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if context else 'http'}://{name}:{taken}"
