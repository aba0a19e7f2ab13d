"""The same federation twice: driven by `fedlens compare`, and by the real server with every client over HTTP."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedlens.admin_client import AdminClient, AdminError
from fedlens.compare.plan import FLEET_KEY
from fedlens.compare.run import running
from fedlens.compare.run.running import RunResult
from fedlens_edge_client.client.client import EdgeClient
from fedlens_edge_client.client.events import Event
from fedlens_edge_client.client.http_transport import HttpTransport, trust
from fedlens_edge_client.client.retrying import Backoff
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.faulty_transport import FaultyTransport
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.engines.choice import EngineName, make_engine
from fedlens_edge_client.training.label_distribution import PrivateGenerator, private_generator
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2
from tests.integration.processes import ServerProcess

BACKOFF = Backoff(first_s=0.02, most_s=0.2, give_up_after_s=60)
# What tells how a round went by the clock and on the way, and may differ.
TIMES = ("opened_at", "ended_at", "bytes_sent")


def fleet(folder: Path, photos: Path, clients: int, **changes: Any) -> FleetConfig:
    """Non-iid cameras of few photos each, in one process, without faults unless a `plan` is given."""
    defaults: dict[str, Any] = {
        "server": "",
        "pool": PhotoPool.open(photos),
        "partition": Partition(
            name=PartitionName.CAMERA_NONIID, seed=3, clients=clients, per_class=3, test_per_class=2
        ),
        "plan": FaultPlan(),
        "key": FLEET_KEY,
        "workers": 1,
        "shares_downloads": False,
    }
    return FleetConfig(state=folder, clients=clients, **(defaults | changes))


def member(
    url: str,
    token: str,
    fleet: FleetConfig,
    index: int,
    transport: Transport,
    engine_of: Callable[[Bundle], Engine],
    *,
    private: PrivateGenerator,
    executor: Executor | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> EdgeClient:
    """A client of a fleet."""
    return EdgeClient(
        url,
        fleet.folder(index),
        fleet.album(index),
        enrolment_token=token,
        models=fleet.models_of(index),
        engine=fleet.engine_of(index),
        secret=fleet.secret(index),
        private_generator=private,
        transport=transport,
        engine_factory=engine_of,
        cache=fleet.cache(index),
        features=fleet.features,
        executor=executor,
        on_event=on_event,
    )


async def over_http(
    server: ServerProcess,
    fleet: FleetConfig,
    settings_json: str,
    bundles: list[Path],
    elsewhere: Mapping[int, Callable[[], Awaitable[None]]] = MappingProxyType({}),
) -> RunResult:
    """The task as the real server tells of it, once it has ended; comparable with what `in_a_study` gives.

    What is in `elsewhere` is called in place of a client that would run here.
    """
    opened = {bundle.id: bundle for bundle in map(Bundle.open, bundles)}
    engines: dict[tuple[EngineName, bytes], Engine] = {}

    def engine_of(name: EngineName, bundle: Bundle) -> Engine:
        if (name, bundle.id) not in engines:
            engines[name, bundle.id] = make_engine(name, opened[bundle.id])
        return engines[name, bundle.id]

    admin = AdminClient(server.profile)
    await asyncio.to_thread(admin.create_task, running.TASK, list(opened.values()), settings_json)
    context = trust(server.ca)

    async def take_part(index: int, executor: ThreadPoolExecutor) -> None:
        if index in elsewhere:
            await elsewhere[index]()
            return
        secret = fleet.secret(index)
        transport: Transport = HttpTransport(server.url, secret, ssl_context=context, backoff=BACKOFF)
        if index != EVALUATOR:
            transport = FaultyTransport(transport, fleet.plan, index)
        token = server.token("evaluator" if index == EVALUATOR else "trainer")
        private = partial(private_generator, secret)
        engine = partial(engine_of, fleet.engine_of(index))
        async with member(
            server.url, token, fleet, index, transport, engine, private=private, executor=executor
        ) as client:
            await client.run()

    with ThreadPoolExecutor(1) as trainers, ThreadPoolExecutor(1) as evaluators:
        await asyncio.gather(
            *(take_part(index, evaluators if index == EVALUATOR else trainers) for index in fleet.indices)
        )
    shown = await asyncio.to_thread(admin.show, running.TASK)
    try:
        model = BytesIO()
        found = await asyncio.to_thread(admin.model, running.TASK)
        await asyncio.to_thread(admin.fetch, found.blob_sha256, model)
    except AdminError:
        return RunResult(shown, None)
    return RunResult(shown, None if found.extractors else model.getvalue())


async def in_a_study(fleet: FleetConfig, settings_json: str, bundles: list[Path]) -> RunResult:
    """The task as `fedlens compare` tells of it."""
    return await running.run(fleet, settings_json, tuple(bundles))


def assert_same(study: RunResult, http: RunResult) -> None:
    """The same rounds, members, updates, measurements and model, to the last bit.

    An evaluator over HTTP may miss a model while it evaluates another; what it has not missed is the same.
    """
    assert study.model == http.model
    assert len(study.shown.rounds) == len(http.shown.rounds)
    for ours, theirs in zip(study.shown.rounds, http.shown.rounds, strict=True):
        missed = () if getattr(theirs, "global") else ("global",)
        assert _without(ours, *TIMES, *missed) == _without(theirs, *TIMES)


def _without(result: admin_pb2.RoundResult, *fields: str) -> admin_pb2.RoundResult:
    plain = admin_pb2.RoundResult()
    plain.CopyFrom(result)
    for field in fields:
        plain.ClearField(field)
    return plain
