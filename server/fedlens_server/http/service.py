"""The running service, shared by all requests: the federation, the polls held open, and the state of the server."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from enum import Enum
from typing import TypeVar

from aiohttp import web

from fedlens_proto.v1 import enrolment_pb2
from fedlens_server.clock import Clock
from fedlens_server.config import Config
from fedlens_server.engine import recovery
from fedlens_server.engine.clients import TokenGrant
from fedlens_server.engine.view import Change, Federation
from fedlens_server.errors import SlowDown, Unavailable
from fedlens_server.http.driver import Driver
from fedlens_server.http.long_polls import Polls
from fedlens_server.http.outcomes import Outcomes
from fedlens_server.store import Store

RETRY_MS = 2_000
_ROLES = {"trainer": enrolment_pb2.CLIENT_ROLE_TRAINER, "evaluator": enrolment_pb2.CLIENT_ROLE_EVALUATOR}
T = TypeVar("T")


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
        self._outcomes = Outcomes()
        self._federation: Federation | None = None
        self._driver: Driver | None = None
        self._starting: asyncio.Task[None] | None = None
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

    def begin(self) -> None:
        """Start in the background; requests are refused until `ready()` returns."""
        self._starting = asyncio.create_task(self._start())

    async def ready(self) -> None:
        """Return when requests are answered; raises the error that start-up ended with."""
        if self._starting is not None:
            await self._starting

    def stop_accepting(self) -> None:
        """Refuse new requests and answer those that are held; requests that have begun go on."""
        self.state = ServiceState.STOPPING
        self.polls.stop()

    async def end(self) -> None:
        """Stop everything; a round that is being aggregated is finished first."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._driver is not None:
            await self._driver.stop()
        if self._federation is not None:
            await asyncio.to_thread(self._federation.close)

    async def durable(self, change: Future[T]) -> T:
        """The outcome of an engine's operation, once it is on disk; a request that is cut off does not undo it."""
        return await self._outcomes.of(change)

    def upload_slot(self) -> "_Slot":
        """Room for one more update; held while its body is received.

        Raises:
            SlowDown: `limits.max_uploads` are being received already.
        """
        if self._uploads >= self.config.limits.max_uploads:
            raise SlowDown("as many updates as the server takes at a time are on their way; try again later", RETRY_MS)
        return _Slot(self)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._federation = await asyncio.to_thread(recovery.load, self.store, self.clock)
        self._driver = Driver(self._federation)
        driver, polls = self._driver, self.polls

        def apply(change: Change) -> None:
            if change.due:
                driver.wake()
            if change.tasks:
                polls.wake(change.tasks)

        def changed(change: Change) -> None:
            loop.call_soon_threadsafe(apply, change)

        driver.start(self._federation.subscribe(changed))
        if self.state is ServiceState.STARTING:
            self.state = ServiceState.READY


class _Slot:
    def __init__(self, service: Service) -> None:
        self._service = service

    def __enter__(self) -> None:
        self._service._uploads += 1

    def __exit__(self, *exc: object) -> None:
        self._service._uploads -= 1


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
