"""Phones that come and go by a plan, each a whole `EdgeClient`, and their server, in one process on one clock.

The clock stands still while anybody works, and jumps when all phones sleep. Only sockets and training are left out.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens.compare.run.direct_transport import DirectTransport
from fedlens.compare.run.study_clock import StudyClock
from fedlens_edge_client.client.client import EdgeClient
from fedlens_edge_client.client.clock import Clock
from fedlens_edge_client.client.events import Event, RoundRefused
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.emulation.emulated_time import come_and_go
from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.faulty_transport import FaultyTransport
from fedlens_edge_client.emulation.presence import PresencePlan
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_edge_client.policy import EMULATED
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_proto import keyed_hash
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2
from fedlens_server.config import Config
from fedlens_server.engine import aggregation, assignments
from fedlens_server.engine.arrivals import places
from fedlens_server.engine.operators.access import TokenGrant
from fedlens_server.http.service import Service
from fedlens_server.store import Store
from tests.edge_client.linear import LinearEngine
from tests.edge_client.photo_folders import add_photos
from tests.integration.records import NotingTransport, Receipt

GRANTS = {"trainer": TokenGrant(name="trainer", role=enrolment_pb2.CLIENT_ROLE_TRAINER)}
LEAST_KEPT_S = 5.0  # shorter pauses end with the process


class ShiftEngine(LinearEngine):
    """An engine for every bundle, whose training adds one to each float."""

    def train(self, program: str, weights: Any, *arguments: Any, **others: Any) -> dict[str, Array]:
        return {name: value + np.float32(1) if value.dtype.kind == "f" else value for name, value in weights.items()}

    def predict(self, weights: Any, inputs: NDArray[np.float32], *arguments: Any, **others: Any) -> NDArray[np.float32]:
        return np.zeros((len(inputs), 2), np.float32)


class FewPhotos:
    """An album of two photos of each class to train on, the same for all."""

    def __init__(self, folder: Path) -> None:
        paths = [(label, path) for label in ("class 0", "class 1") for path in add_photos(folder, label, 2)]
        found = [Photo(sha256(path.read_bytes()).digest(), 0, label, path, is_test=False) for label, path in paths]
        self._snapshot = AlbumSnapshot(tuple(found))

    def photos(self, round_number: int) -> AlbumSnapshot:
        return self._snapshot


class Work:
    """The number of those that work, so that the clock must stand still."""

    def __init__(self) -> None:
        self.count = 0
        self.done = asyncio.Event()

    @contextmanager
    def going_on(self, by: int = 1) -> Iterator[None]:
        self.count += by
        try:
            yield
        finally:
            self.count -= by
            self.done.set()


@dataclass(frozen=True)
class IdleAsleep:
    """The clock of a phone, which does not work while it sleeps."""

    inner: Clock
    work: Work

    def now(self) -> float:
        return self.inner.now()

    async def sleep(self, seconds: float) -> None:
        with self.work.going_on(-1):
            await self.inner.sleep(seconds)


class ServiceTransport(DirectTransport):
    """As over HTTP: who finds no work asks for a place."""

    def __init__(self, service: Service, secret: bytes) -> None:
        super().__init__(service.federation, GRANTS, secret)
        self._service = service

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        ask = partial(assignments.check_in, self._federation, self._id, request)
        response = check_in_pb2.CheckInResponse()
        response.CopyFrom(await self._service.polls.respond(self._id, request, ask, self._service.places))
        return response


@dataclass
class Seen:
    """Of all phones together.

    Attributes:
        receipts: All that phones were given; those of an update that was sent twice, twice.
        waits: Check-ins without work, by reason.
        refused: Updates that the server refused, by code.
        enrolled: The phones that have been there.
        early: Phones that asked before the time that they were told, although nobody set their clock.
        doubly: Phones with places in two tasks at a time.
    """

    receipts: list[Receipt] = field(default_factory=list)
    waits: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    enrolled: set[int] = field(default_factory=set)
    early: set[int] = field(default_factory=set)
    doubly: set[int] = field(default_factory=set)
    not_before: dict[int, tuple[float, float]] = field(default_factory=dict)  # the time, and the error of its clock


class ObservedTransport(TransportWrapper):
    """Notes what a phone and the server tell each other."""

    def __init__(self, inner: Transport, phones: "Phones", index: int, error_s: float) -> None:
        super().__init__(inner)
        self._phones, self._index, self._error_s = phones, index, error_s

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        phones, seen, now = self._phones, self._phones.seen, self._phones.clock.now()
        seen.enrolled.add(self._index)
        not_before, error_s = seen.not_before.pop(self._index, (0.0, 0.0))
        if now < not_before and error_s == self._error_s:
            seen.early.add(self._index)
        response = await super().check_in(request)
        open_rounds = places.open_rounds(phones.service.federation)
        held = [current for _, current in open_rounds if current.holds_place(phones.client_id(self._index), now)]
        if len(held) > 1:
            seen.doubly.add(self._index)
        if response.HasField("wait"):
            seen.waits[check_in_pb2.WaitReason.Name(response.wait.reason).removeprefix("WAIT_REASON_")] += 1
            after_s = min(response.wait.retry_after_ms / 1000, 3600)
            if after_s >= LEAST_KEPT_S:
                seen.not_before[self._index] = now + after_s, self._error_s
        return response


@dataclass
class Phones:
    """So many phones, and their server; `begin` starts them.

    Attributes:
        plan: When they are there.
        faults: What goes wrong on the way.
    """

    folder: Path
    service: Service
    clock: StudyClock
    count: int
    plan: PresencePlan
    faults: FaultPlan
    compute: Executor
    disk: Executor
    work: Work = field(default_factory=Work)
    seen: Seen = field(default_factory=Seen)
    _running: list[asyncio.Task[None]] = field(default_factory=list)
    _engines: dict[bytes, ShiftEngine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock.on_sleep = self.work.done.set
        self._album = FewPhotos(self.folder / "photos")

    def secret(self, index: int) -> bytes:
        return sha256(f"phone {index}".encode()).digest()

    def client_id(self, index: int) -> bytes:
        return keyed_hash.client_id(self.secret(index))

    def state(self, index: int) -> Path:
        """The state folder of a phone."""
        return self.folder / f"phone-{index}"

    def begin(self) -> None:
        for index in range(self.count):
            attend = partial(self._attend, index)
            self._running.append(asyncio.create_task(come_and_go(self.plan, index, self.clock, attend)))

    async def until(self, when: float) -> None:
        """Go on until this time, or until no phone has anything to do any more."""
        federation = self.service.federation
        while self.clock.now() < when and not all(phone.done() for phone in self._running):
            self.work.done.clear()
            if self.work.count or aggregation.due(federation) or federation.aggregating:
                await self.work.done.wait()
                continue
            # What the last commit set off has ended when this has.
            await asyncio.wrap_future(federation.store.submit(lambda transaction: None))
            await asyncio.sleep(0)
            if not (self.work.count or aggregation.due(federation) or federation.aggregating):
                times = self.clock.next_awake(), aggregation.next_deadline(federation)
                self.clock.jump(min(when, *(each for each in times if each is not None)))
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Have all phones go; raises the error of one that failed."""
        for phone in self._running:
            phone.cancel()
        outcomes = await asyncio.gather(*self._running, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _attend(self, index: int, own: Clock) -> None:
        with self.work.going_on():
            asleep = IdleAsleep(own, self.work)
            way = FaultyTransport(ServiceTransport(self.service, self.secret(index)), self.faults, index, asleep.sleep)
            noting = NotingTransport(way, self.client_id(index), self.seen.receipts)
            client = EdgeClient(
                "fedlens-phones",
                self.state(index),
                self._album,
                publishers=TRUST_SERVER,
                policy=EMULATED,
                enrolment_token="trainer",
                on_event=self._heard,
                secret=self.secret(index),
                transport=ObservedTransport(noting, self, index, own.now() - self.clock.now()),
                engine_factory=self._engine,
                cache=self.folder / "cache",
                executor=self.compute,
                disk=self.disk,
                hold_ms=0,
                durable=False,
                clock=asleep,
            )
            async with client:
                await client.run()

    def _heard(self, event: Event) -> None:
        if isinstance(event, RoundRefused):
            self.seen.refused[event.code] += 1

    def _engine(self, bundle: Bundle) -> ShiftEngine:
        return self._engines.setdefault(bundle.id, ShiftEngine(bundle))


@asynccontextmanager
async def phones_with_server(folder: Path, count: int, plan: PresencePlan, faults: FaultPlan) -> AsyncIterator[Phones]:
    """Phones that have not begun, and a server without tasks."""
    admin = {"token_sha256": sha256(b"admin").hexdigest()}
    config = Config.model_validate({"server": {}, "admin": admin, "limits": {}})
    store = Store.open(folder / "server", durable=False)
    clock = StudyClock()
    with ThreadPoolExecutor(1) as compute, ThreadPoolExecutor(1) as disk:
        service = Service(config, clock, store)
        try:
            service.begin()
            await service.ready()
            phones = Phones(folder, service, clock, count, plan, faults, compute, disk)
            try:
                yield phones
            finally:
                await phones.end()
        finally:
            service.stop_accepting()
            await service.end()
            store.close()
