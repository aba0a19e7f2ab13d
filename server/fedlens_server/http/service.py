"""The running service, shared by all requests: the federation, the polls held open, and the state of the server."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, suppress
from enum import Enum
from typing import NamedTuple

from aiohttp import web

from fedlens_proto.v1 import enrolment_pb2
from fedlens_server.clock import DAY_S, Clock
from fedlens_server.config import Config
from fedlens_server.engine import clients, recovery
from fedlens_server.engine.arrivals.places import Places
from fedlens_server.engine.arrivals.presence import BUCKET_S
from fedlens_server.engine.operators import tokens
from fedlens_server.engine.operators.access import Operator
from fedlens_server.engine.view import Change, Federation
from fedlens_server.errors import SlowDown, StorageFull, Unavailable
from fedlens_server.http import credentials
from fedlens_server.http.driver import Driver
from fedlens_server.http.long_polls import Polls
from fedlens_server.http.outcomes import Outcomes
from fedlens_server.http.sockets.addresses import Addresses
from fedlens_server.http.sockets.certificate import Certificate
from fedlens_server.store import Location, Store
from fedlens_server.store.objects import AT_A_TIME
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event
from fedlens_server.telemetry.metrics import Metrics

RETRY_MS = 2_000
_log = logging.getLogger(__name__)


class ServiceState(Enum):
    """State of a server: `starting -> ready -> stopping`."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class _Upload(NamedTuple):
    transport: asyncio.Transport
    address: str | None  # as limits count it; None: it is small


class Service:
    """One server process, apart from its sockets."""

    def __init__(self, config: Config, clock: Clock, store: Store) -> None:
        """Nothing runs yet; the caller opens and closes `store`."""
        self.config = config
        self.clock = clock
        self.store = store
        self.polls = Polls(config.limits.max_polls, config.limits.max_hold_ms)
        self.addresses = Addresses.of(config.server)
        self.certificate: Certificate | None = None  # that is followed from `begin` on; None: without TLS
        self.metrics = Metrics()
        self.state = ServiceState.STARTING
        # The outcome of an engine's operation, once it is on disk; a request that is cut off does not undo it.
        self.durable = Outcomes().of
        self._federation: Federation | None = None
        self._places: Places | None = None
        # Threads of their own: a blob that comes slowly must not keep requests from theirs.
        self._finders = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="fedlens-finding")
        self._found: dict[bytes, asyncio.Future[Location]] = {}  # of blobs that are being looked for
        self._ending = AsyncExitStack()
        self._ending.callback(self._finders.shutdown, wait=False, cancel_futures=True)
        self._starting: asyncio.Task[None]  # since `begin`
        self.servers: dict[str, web.Server] = {}  # with their connections, by side
        self._uploading: dict[bytes, _Upload] = {}  # by client
        self._large = Counter[str]()  # of them, by address

    @property
    def federation(self) -> Federation:
        """The clients and tasks of this server.

        Raises:
            Unavailable: The server is starting or stopping, or may no longer lead.
        """
        if not self.store.lead.is_certain:
            raise self.store.lead.doubt()
        if self._federation is None or self.state is not ServiceState.READY:
            raise Unavailable(f"the server is {self.state.value}; try again later", RETRY_MS)
        return self._federation

    @property
    def places(self) -> Places:
        """Those who ask for places in rounds; errors as in `federation`."""
        assert self.federation is not None and self._places is not None
        return self._places

    def operator(self, token_sha256: str) -> Operator:
        """The operator whose token has this hash; errors as in `credentials.operator` and `federation`."""
        operators = self.federation.operators
        found = credentials.operator(token_sha256, self.config.admin.token_sha256, operators, self.clock.now())
        if (seen := events.REQUEST.get()) is not None:
            seen.by = found.name
        return found

    @property
    def uploads(self) -> int:
        """The number of large updates that are being received."""
        return self._large.total()

    async def located(self, digest: bytes, find: Callable[[], Location]) -> Location:
        """What `find` gives for a blob; a thread calls it once for all who ask for the blob meanwhile."""
        found = self._found.get(digest)
        if found is None:
            found = self._found[digest] = asyncio.get_running_loop().run_in_executor(self._finders, find)
            found.add_done_callback(lambda _: self._found.pop(digest))
        return await asyncio.shield(found)

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
    def upload(self, client: bytes, request: web.Request, *, is_large: bool) -> Iterator[None]:
        """Receive the update of a client, which has one at a time.

        An older one on its way is cut off: its connection may be dead, and the client try again.

        Raises:
            SlowDown: `limits.max_uploads` large ones, or so many of this address as `limits.max_uploads_per_address`
                says, are being received already.
        """
        limits = self.config.limits
        address = self.addresses.limited(request[ADDRESS]) if is_large else None
        if (older := self._uploading.get(client)) is not None:
            self._ended(client, older)
            older.transport.abort()  # over TLS, `close` would go on for as long as the client does not answer it
        if address is not None and self.uploads >= limits.max_uploads:
            raise SlowDown("as many updates as the server takes at a time are on their way; try again later", RETRY_MS)
        if address and self._large[address] >= limits.max_uploads_per_address:
            raise SlowDown(
                "as many updates as one address may send at a time are on their way; try again later", RETRY_MS
            )
        if request.transport is None:
            raise ConnectionResetError("the client has gone")
        own = self._uploading[client] = _Upload(request.transport, address)
        if address is not None:
            self._large[address] += 1
        try:
            yield
        finally:
            if self._uploading.get(client) is own:
                self._ended(client, own)

    def _ended(self, client: bytes, upload: _Upload) -> None:
        del self._uploading[client]
        if upload.address is not None:
            self._large[upload.address] -= 1
            self._large = +self._large  # without addresses that send nothing now

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self.config.server
        federation = await asyncio.to_thread(
            recovery.load,
            self.store,
            self.clock,
            method_modules=settings.allow_method_modules,
            publishers=settings.publishers,
        )
        await asyncio.to_thread(tokens.load, federation)
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
        for each in (self._note_seen(federation), self._watch_disk()):
            self._ending.callback(asyncio.create_task(each).cancel)
        if self.certificate is not None:
            following = asyncio.create_task(self.certificate.follow(self.clock))
            self._ending.callback(following.cancel)
        self._ending.push_async_callback(driver.stop)
        self._federation = federation
        if self.state is ServiceState.STARTING:
            self.state = ServiceState.READY

    async def _note_seen(self, federation: Federation) -> None:
        """Once a minute, store which clients are here."""
        while True:
            await self.clock.sleep_until(self.clock.elapsed() + BUCKET_S)
            seen = federation.presence.take_unsaved()
            try:
                if seen:
                    await asyncio.wrap_future(clients.note_seen(federation, seen))
            except Exception as error:
                federation.presence.not_saved(seen)
                if isinstance(error, (StorageFull, Unavailable)):
                    continue
                _log.exception("which clients are here could not be stored; next try in %g s", BUCKET_S)

    async def _watch_disk(self) -> None:
        """Once a minute, look whether the disk has become nearly full, or has room again."""
        least, was_full = self.config.limits.min_free_bytes, False
        while True:
            with suppress(OSError):  # the file system of another machine; the next look may tell
                free = await asyncio.to_thread(lambda: self.store.free_bytes)
                if (is_full := free < least) != was_full:
                    event = Event.DISK_NEARLY_FULL if is_full else Event.DISK_HAS_ROOM
                    events.note(event, free_bytes=free, min_free_bytes=least)
                    was_full = is_full
            await self.clock.sleep_until(self.clock.elapsed() + BUCKET_S)


SERVICE = web.AppKey("service", Service)
SIDE = web.AppKey("side", str)
"""Of an application: `clients` or `operators`."""
OPERATOR = web.RequestKey("operator", Operator)
"""The operator who sent a request to the admin API."""
ADDRESS = web.RequestKey("address", str)
"""The address of the client that sent a request, also behind a trusted proxy."""
BLOB_BYTES = web.RequestKey("blob_bytes", int)
"""Bytes of a blob that the answer to a request brings, also where aiohttp or nginx sends them from a file."""
