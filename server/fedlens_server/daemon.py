"""A server process: from a config to sockets, until a signal."""

import asyncio
import logging
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from fedlens_server.clock import Clock, SystemClock
from fedlens_server.config import Config
from fedlens_server.errors import StoreUnusable
from fedlens_server.http.app import create_admin_app, create_app
from fedlens_server.http.listening import Runner, close, listen, tls
from fedlens_server.http.service import SERVICE
from fedlens_server.store import Store
from fedlens_server.store.database import DATABASE_FILE

# The writing thread must not keep the event loop waiting for Python's lock for the usual 5 ms each time.
SWITCH_INTERVAL_S = 0.0005
_log = logging.getLogger(__name__)


async def serve(
    config: Config,
    announce: Callable[[str], None],
    clock: Clock | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until `stop` is set; returns when all that was accepted is done.

    Args:
        config: What to serve.
        announce: Given one line, once requests are answered.
        clock: The machine's, if None.
        stop: One of its own, if None.

    Raises:
        ConfigError: A certificate or an address cannot be used.
        StoreUnusable: There is no state in `server.data`, or it cannot be opened, or not be written any more.
    """
    stop = stop or asyncio.Event()
    server, admin = config.server, config.admin
    context = None
    if server.certfile is not None and server.keyfile is not None:
        context = tls(server.certfile, server.keyfile)
    _allow_many_connections()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    store = await asyncio.to_thread(_open, server.data)
    broken = False

    def give_up() -> None:
        nonlocal broken
        broken = True
        loop.call_soon_threadsafe(stop.set)

    store.on_broken(give_up)
    try:
        app = create_app(config, clock or SystemClock(), store)
        clients, operators = Runner(app), Runner(create_admin_app(app[SERVICE]))
        try:
            await clients.setup()
            await operators.setup()
            client_url = await listen(clients, server.host, server.port, context, "server.port")
            admin_url = await listen(operators, admin.host, admin.port, context, "admin.port")
            await app[SERVICE].ready()
            announce(f"fedlens: ready, clients at {client_url}, operators at {admin_url}")
            await stop.wait()
            _log.info("stopping")
            app[SERVICE].stop_accepting()
        finally:
            await close([operators, clients], config.limits.stop_s)
    finally:
        await asyncio.to_thread(store.close)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if broken:
        raise StoreUnusable(f"the state in {server.data} could not be written; the log says why. Start the server anew")


def _open(folder: Path) -> Store:
    if not (folder / DATABASE_FILE).is_file():
        raise StoreUnusable(
            f"server.data: {folder} holds no server's state ({DATABASE_FILE}). If it is on a disk that is not there, "
            "mount it. To begin with an empty state, run `fedlens serve --new-data` with this config once"
        )
    return Store.open(folder)


def _allow_many_connections() -> None:
    # A held check-in is an open file, and the usual soft limit of 1024 is there for programs that call select().
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
