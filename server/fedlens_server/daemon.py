"""The server process: sockets from a config, until a signal."""

import asyncio
import resource
import signal
import ssl
import sys
from collections.abc import Callable
from importlib.metadata import version

from fedlens_server.clock import Clock, SystemClock
from fedlens_server.config import Config, ListeningSection
from fedlens_server.errors import StoreUnusable, Unavailable
from fedlens_server.http.app import create_admin_app, create_app
from fedlens_server.http.service import SERVICE
from fedlens_server.http.sockets.certificate import Certificate
from fedlens_server.http.sockets.listening import Runner, close, listen, listen_on_socket
from fedlens_server.store import StateAddress, Store
from fedlens_server.store.database import holds_state
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

# At Python's default of 5 ms the writing thread would delay the event loop.
SWITCH_INTERVAL_S = 0.0005


async def serve(
    config: Config,
    announce: Callable[[str], None],
    stop: asyncio.Event | None = None,
    clock: Clock | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until `stop` is set; return when all accepted requests are done.

    SIGHUP has the certificate read again.

    Args:
        config: The config.
        announce: Called with one line when the server is ready.
        stop: Ends the server when it is set; None: signals alone do.
        clock: Of rounds and pauses, instead of the machine's.

    Raises:
        ConfigError: A certificate, an address or a socket cannot be used.
        StoreUnusable: `server.data` holds no state, cannot be opened, or can no longer be written.
    """
    stop = stop or asyncio.Event()
    server = config.server
    certificate = None
    if server.certfile is not None and server.keyfile is not None:
        certificate = Certificate(server.certfile, server.keyfile)
    context = None if certificate is None else certificate.context
    _allow_many_connections()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Without a certificate it means nothing, and must not end the server either.
    loop.add_signal_handler(signal.SIGHUP, certificate.read_again if certificate else lambda: None)
    store = await asyncio.to_thread(_open, server.state)

    def give_up() -> None:
        loop.call_soon_threadsafe(stop.set)

    store.on_broken(give_up)
    try:
        app = create_app(config, clock or SystemClock(), store)
        app[SERVICE].certificate = certificate
        clients, operators = Runner(app), Runner(create_admin_app(app[SERVICE]))
        try:
            await clients.setup()
            await operators.setup()
            client_url = await _listen(clients, server, context, "server")
            admin_url = await _listen(operators, config.admin, context, "admin")
            try:
                await app[SERVICE].ready()
            except Unavailable as error:
                raise StoreUnusable(f"{store.database.place}: {error}") from error
            events.note(Event.READY, clients=client_url, operators=admin_url, version=version("fedlens"))
            announce(f"fedlens: ready, clients at {client_url}, operators at {admin_url}")
            await stop.wait()
            events.note(Event.STOPPING)
            app[SERVICE].stop_accepting()
        finally:
            await close([operators, clients], config.limits.stop_s)
    finally:
        await asyncio.to_thread(store.close)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
    if store.writing.broken:
        raise StoreUnusable(
            f"the state in {store.database.place} could not be written; see the log, and restart the server "
            f"({store.writing.broken})"
        )


async def _listen(runner: Runner, section: ListeningSection, context: ssl.SSLContext | None, name: str) -> str:
    if section.socket is not None:
        return await listen_on_socket(runner, section.socket, f"{name}.socket")
    return await listen(runner, section.host, section.port, context, f"{name}.port")


def _open(state: StateAddress) -> Store:
    if not holds_state(state):
        place = f"server.data: {state.folder}" if state.database is None else f"server.database: {state.database}"
        raise StoreUnusable(
            f"{place} holds no server's state. If its disk is not mounted, mount it. "
            "To start with an empty state, run `fedlens serve --new-data` with this config once"
        )
    return Store.open(state)


def _allow_many_connections() -> None:
    # Every open check-in is an open file. The usual soft limit of 1024 protects programs that call select().
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
