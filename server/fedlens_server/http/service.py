"""The running service, shared by all requests: the federation, the polls held open, and the state of the server."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from enum import Enum

from aiohttp import web

from fedlens_proto.v1 import enrolment_pb2
from fedlens_server.clock import Clock
from fedlens_server.config import Config
from fedlens_server.engine import clients, recovery
from fedlens_server.engine.arrivals.places import Places
from fedlens_server.engine.arrivals.presence import BUCKET_S
from fedlens_server.engine.clients import TokenGrant
from fedlens_server.engine.view import Change, Federation
from fedlens_server.errors import SlowDown, StorageFull, Unavailable
from fedlens_server.http.driver import Driver
from fedlens_server.http.long_polls import Polls
from fedlens_server.http.outcomes import Outcomes
from fedlens_server.store import Store

RETRY_MS = 2_000
DAY_S = 86_400.0
_ROLES = {"trainer": enrolment_pb2.CLIENT_ROLE_TRAINER, "evaluator": enrolment_pb2.CLIENT_ROLE_EVALUATOR}


class ServiceState(Enum):
    """State of a server: `starting -> ready -> stopping`."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Service:
    """One server process, apart from its sockets."""

    def __init__(self, config: Config, clock: Clock, store: Store) -> None:
        """Nothing runs yet; the caller opens and closes `store`."""
        self.config = config
        self.clock = clock
        self.store = store
        self.grants = _grants(config)
        self.polls = Polls(config.limits.max_polls, config.limits.max_hold_ms)
        self.state = ServiceState.STARTING
        # The outcome of an engine's operation, once it is on disk; a request that is cut off does not undo it.
        self.durable = Outcomes().of
        self._federation: Federation | None = None
        self._places: Places | None = None
        self._ending = AsyncExitStack()
        self._starting: asyncio.Task[None]  # since `begin`
        self._uploads = 0

    @property
    def federation(self) -> Federation:
        """The clients and tasks of this server.

        Raises:
            Unavailable: The server is starting or stopping.
        """
        if self._federation is None or self.state is not ServiceState.READY:
            raise Unavailable(f"the server is {self.state.value}; try again later", RETRY_MS)
        return self._federation

    @property
    def places(self) -> Places:
        """Those who ask for places in rounds; errors as in `federation`."""
        assert self.federation is not None and self._places is not None
        return self._places

    def begin(self) -> None:
        """Start in the background; requests are refused until `ready()` returns."""
        self._starting = asyncio.create_task(self._start())

    async def ready(self) -> None:
        """Return when requests are answered; raises the error that start-up ended with."""
        await self._starting

    def stop_accepting(self) -> None:
        """Refuse new requests and answer those that are held; requests that have begun go on."""
        self.state = ServiceState.STOPPING
        self.polls.stop()

    async def end(self) -> None:
        """Stop everything; a round that is being aggregated is finished first."""
        await asyncio.wait([self._starting])
        await self._ending.aclose()

    @contextmanager
    def upload_slot(self) -> Iterator[None]:
        """Room for one more update; held while its body is received.

        Raises:
            SlowDown: `limits.max_uploads` are being received already.
        """
        if self._uploads >= self.config.limits.max_uploads:
            raise SlowDown("as many updates as the server takes at a time are on their way; try again later", RETRY_MS)
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        modules = self.config.server.allow_method_modules
        federation = await asyncio.to_thread(recovery.load, self.store, self.clock, method_modules=modules)
        self._places = places = Places(federation)
        places.on_given = lambda clients: loop.call_soon_threadsafe(self.polls.wake_clients, clients)
        driver = Driver(federation, places, self.config.server.retention_days * DAY_S)
        places.on_free = lambda: loop.call_soon_threadsafe(driver.wake)

        def apply(change: Change) -> None:
            if change.due:
                places.look()
                driver.wake()
            if change.tasks:
                self.polls.wake(change.tasks)
            if change.models:
                self.polls.wake(change.models, evaluates)
            self.polls.wake_clients(change.clients)

        def evaluates(client: bytes) -> bool:
            found = federation.clients.get(client)
            return found is not None and found.role == enrolment_pb2.CLIENT_ROLE_EVALUATOR

        def changed(change: Change) -> None:
            loop.call_soon_threadsafe(apply, change)

        self._ending.push_async_callback(asyncio.to_thread, federation.close)
        self._ending.push_async_callback(asyncio.to_thread, places.close)
        self._ending.callback(federation.subscribe(changed))
        noting = asyncio.create_task(self._note_seen(federation))
        self._ending.callback(noting.cancel)
        self._ending.push_async_callback(driver.stop)
        self._federation = federation
        if self.state is ServiceState.STARTING:
            self.state = ServiceState.READY

    async def _note_seen(self, federation: Federation) -> None:
        """Once a minute, store which clients are here."""
        while True:
            await self.clock.sleep_until(self.clock.elapsed() + BUCKET_S)
            if seen := federation.presence.take_unsaved():
                with suppress(StorageFull):  # they are seen again
                    await asyncio.wrap_future(clients.note_seen(federation, seen))


SERVICE = web.AppKey("service", Service)


def _grants(config: Config) -> Mapping[str, TokenGrant]:
    return {
        entry.sha256: TokenGrant(
            name=entry.name,
            role=_ROLES[entry.role],
            max_uses=entry.max_uses,
            expires_at=None if entry.expires_at is None else entry.expires_at.timestamp(),
        )
        for entry in config.enrolment
    }
