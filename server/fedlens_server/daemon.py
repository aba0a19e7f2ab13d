"""The server process: sockets from a config, until a signal."""

import asyncio
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version

from fedlens_server.clock import Clock, SystemClock
from fedlens_server.config import Config
from fedlens_server.errors import StoreUnusable, Unavailable
from fedlens_server.http.app import create_admin_app, create_app
from fedlens_server.http.service import SERVICE
from fedlens_server.http.sockets.certificate import Certificate
from fedlens_server.http.sockets.listening import Runner, close, listen, listen_on_socket
from fedlens_server.http.standby import create_standby_app
from fedlens_server.sections import ListeningSection
from fedlens_server.store import Candidate, StateAddress, Store
from fedlens_server.store.copies import backups
from fedlens_server.store.database import check_access, holds_state
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

    While another server leads the same database, this one is a standby. SIGHUP has the certificate read again.

    Args:
        config: The config.
        announce: Called with one line when the server is ready, and before that with one if it is a standby.
        stop: Ends the server when it is set; None: signals alone do.
        clock: Of rounds and pauses, instead of the machine's.

    Raises:
        ConfigError: A certificate, an address or a socket cannot be used.
        StoreUnusable: `server.data` holds no state, cannot be opened, or can no longer be written.
    """
    stop, clock = stop or asyncio.Event(), clock or SystemClock()
    server = config.server
    certificate = None
    if server.certfile is not None and server.keyfile is not None:
        certificate = Certificate(server.certfile, server.keyfile)
    _allow_many_connections()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Without a certificate it means nothing, and must not end the server either.
    loop.add_signal_handler(signal.SIGHUP, certificate.read_again if certificate else lambda: None)
    try:
        candidate = await asyncio.to_thread(_open, server.state)
        try:
            leads = await _wait(candidate, config, certificate, announce, stop, clock)
        except BaseException:
            await asyncio.to_thread(candidate.close)
            raise
        if leads:
            store = await asyncio.to_thread(Store, candidate)
            await _lead(store, config, certificate, announce, stop, clock)
        else:
            await asyncio.to_thread(candidate.close)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


async def _wait(
    candidate: Candidate,
    config: Config,
    certificate: Certificate | None,
    announce: Callable[[str], None],
    stop: asyncio.Event,
    clock: Clock,
) -> bool:
    """Return when the server leads, True, or is to stop."""
    if await asyncio.to_thread(candidate.try_lead):
        return True
    operators = Runner(create_standby_app(config.admin, clock, candidate))
    following = None if certificate is None else asyncio.create_task(certificate.follow(clock))
    try:
        await operators.setup()
        url = await _listen(operators, config.admin, certificate, "admin")
        events.note(Event.STANDBY, leader=candidate.lead.seen.holder, term=candidate.lead.seen.term, operators=url)
        announce(f"fedlens: standby, {candidate.lead.seen}, operators at {url}")
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), candidate.lead.pause_s)
            if not stop.is_set() and await asyncio.to_thread(candidate.try_lead):
                return True
        return False
    finally:
        if following is not None:
            following.cancel()
        await close([operators], 0)


async def _lead(
    store: Store,
    config: Config,
    certificate: Certificate | None,
    announce: Callable[[str], None],
    stop: asyncio.Event,
    clock: Clock,
) -> None:
    """Serve with the state of a server that leads, and close it."""
    loop = asyncio.get_running_loop()

    def give_up() -> None:
        loop.call_soon_threadsafe(stop.set)

    store.on_broken(give_up)
    try:
        app = create_app(config, clock, store)
        app[SERVICE].certificate = certificate
        clients, operators = Runner(app), Runner(create_admin_app(app[SERVICE]))
        try:
            await clients.setup()
            await operators.setup()
            client_url = await _listen(clients, config.server, certificate, "server")
            admin_url = await _listen(operators, config.admin, certificate, "admin")
            try:
                await app[SERVICE].ready()
            except Unavailable as error:
                raise StoreUnusable(f"{store.database.place}: {error}") from error
            # No reason to end: a disk for backups may be away for a while.
            if (place := config.server.backups) is not None and (reason := backups.obstacle(place)):
                events.note(Event.BACKUP_FAILED, reason=f"server.backups: {reason}")
            events.note(Event.READY, clients=client_url, operators=admin_url, version=version("fedlens"))
            announce(f"fedlens: ready, clients at {client_url}, operators at {admin_url}")
            await stop.wait()
            events.note(Event.STOPPING)
            app[SERVICE].stop_accepting()
        finally:
            # Nothing that has begun can end well once another server leads.
            await close([operators, clients], 0 if store.lead.is_lost else config.limits.stop_s)
    finally:
        await asyncio.to_thread(store.close)
    if store.lead.is_lost:
        raise StoreUnusable(f"another server leads {store.database.place} now; start this one again, as its standby")
    if store.writing.broken:
        raise StoreUnusable(
            f"the state in {store.database.place} could not be written; see the log, and restart the server "
            f"({store.writing.broken})"
        )


async def _listen(runner: Runner, section: ListeningSection, certificate: Certificate | None, name: str) -> str:
    context = None if certificate is None else certificate.context
    if section.socket is not None:
        return await listen_on_socket(runner, section.socket, f"{name}.socket")
    return await listen(runner, section.host, section.port, context, name)


def _open(state: StateAddress) -> Candidate:
    check_access(state.folder)
    if not holds_state(state):
        if state.folder.is_file():
            raise StoreUnusable(f"server.data: {state.folder} is a file, not a folder")
        place = f"server.data: {state.folder}" if state.database is None else f"server.database: {state.database}"
        raise StoreUnusable(
            f"{place} holds no server's state. If its disk is not mounted, mount it. "
            "To start with an empty state, run `fedlens serve --new-data` with this config once"
        )
    return Candidate.open(state)


def _allow_many_connections() -> None:
    # Every open check-in is an open file. The usual soft limit of 1024 protects programs that call select().
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
