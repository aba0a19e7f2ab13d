"""The same federation twice: driven by `fedlens compare`, and by the real server with every client over HTTP."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedlens.admin_client import AdminClient, AdminError
from fedlens.compare.plan import FLEET_KEY
from fedlens.compare.run import running
from fedlens.compare.run.running import RunResult
from fedlens_edge_client.client.client import EdgeClient
from fedlens_edge_client.client.http_transport import HttpTransport, trust
from fedlens_edge_client.client.retrying import Backoff
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.emulation.faults import FaultEntry, FaultKind, FaultPlan
from fedlens_edge_client.emulation.faulty_transport import FaultyTransport
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.engines.choice import EngineName, make_engine
from fedlens_edge_client.policy import EMULATED
from fedlens_edge_client.training.label_distribution import private_generator
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2
from tests.integration.ended_rounds import EndedRounds, EndingTransport
from tests.integration.processes import ServerProcess

CLIENTS = 8
BACKOFF = Backoff(first_s=0.02, most_s=0.2, give_up_after_s=60)
# What tells how a round went by the clock and on the way, and may differ.
TIMES = ("opened_at", "ended_at", "bytes_sent")
Planned = tuple[int, int, FaultKind]  # a client's index, a round, and what goes wrong there
Elsewhere = Mapping[int, Callable[[], Awaitable[None]]]
Wrapped = Callable[[Transport, int], Transport]


def settings(method: str, **more: Any) -> str:
    """A task's settings as JSON: two rounds of one epoch, with a seed of the method's own."""
    hyper = {"lr_extractor": 0.05, "lr_classifier": 0.05, **more.pop("hyper", {})}
    plain = {"method": method, "rounds": 2, "population": CLIENTS, "epochs": 1, "deadline_s": 600, "hyper": hyper}
    return json.dumps({**plain, "seed": sha256(method.encode()).hexdigest(), **more})


def fleet(
    folder: Path, photos: Path, clients: int = CLIENTS, faults: Sequence[Planned] = (), **changes: Any
) -> FleetConfig:
    """Non-iid cameras of few photos each, in one process."""
    entries = tuple(FaultEntry(client=index, round=number, kind=kind) for index, number, kind in faults)
    defaults: dict[str, Any] = {
        "server": "",
        "pool": PhotoPool.open(photos),
        "partition": Partition(
            name=PartitionName.CAMERA_NONIID, seed=3, clients=clients, per_class=3, test_per_class=2
        ),
        "plan": FaultPlan(fault=entries),
        "key": FLEET_KEY,
        "workers": 1,
        "shares_downloads": False,
    }
    return FleetConfig(state=folder, clients=clients, **(defaults | changes))


def member(server: ServerProcess, fleet: FleetConfig, index: int, **changes: Any) -> EdgeClient:
    """A client of a fleet, over HTTP if `changes` name no other transport."""
    secret = fleet.secret(index)
    defaults: dict[str, Any] = {
        "publishers": TRUST_SERVER,
        "enrolment_token": server.token("evaluator" if index == EVALUATOR else "trainer"),
        "models": fleet.models_of(index),
        "engine": fleet.engine_of(index),
        "in_process": True,
        "secret": secret,
        "private_generator": partial(private_generator, secret),
        "transport": HttpTransport(server.url, secret, ssl_context=trust(server.ca), backoff=BACKOFF),
        "cache": fleet.cache(index),
        "features": fleet.features,
        "policy": EMULATED,
    }
    return EdgeClient(server.url, fleet.folder(index), fleet.album(index), **(defaults | changes))


async def over_http(
    server: ServerProcess,
    fleet: FleetConfig,
    settings_json: str,
    bundles: list[Path],
    elsewhere: Elsewhere = MappingProxyType({}),
    wrapped: Wrapped = lambda transport, index: transport,
) -> RunResult:
    """The task as the real server tells of it, once it has ended; comparable with what `in_a_study` gives.

    What is in `elsewhere` is called in place of a client that would run here; `wrapped` wraps the others' transports.
    """
    opened = {bundle.id: bundle for bundle in map(Bundle.open, bundles)}

    @cache
    def engine_of(name: EngineName, digest: bytes) -> Engine:
        return make_engine(name, opened[digest])

    admin = AdminClient(server.profile)
    await asyncio.to_thread(admin.create_task, running.TASK, list(opened.values()), settings_json)
    context = trust(server.ca)
    rounds = EndedRounds(admin, running.TASK)

    async def take_part(index: int, executor: ThreadPoolExecutor) -> None:
        if index in elsewhere:
            await elsewhere[index]()
            return
        http = HttpTransport(server.url, fleet.secret(index), ssl_context=context, backoff=BACKOFF)
        ending = EndingTransport(wrapped(http, index), rounds, fleet.plan, index, fleet.client_id(index))
        transport = http if index == EVALUATOR else FaultyTransport(ending, fleet.plan, index)
        engine = fleet.engine_of(index)
        async with member(
            server,
            fleet,
            index,
            transport=transport,
            engine_factory=lambda bundle: engine_of(engine, bundle.id),
            executor=executor,
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
    """The task as `fedlens compare` tells of it, without clusters, which no server tells."""
    return replace(await running.run(fleet, settings_json, tuple(bundles)), clusters={})


async def both(
    server: ServerProcess,
    fleet: FleetConfig,
    settings_json: str,
    bundles: list[Path],
    elsewhere: Elsewhere = MappingProxyType({}),
    wrapped: Wrapped = lambda transport, index: transport,
) -> RunResult:
    """The task as a study tells of it, after a check that the real server tells the same to the last bit.

    These are rounds, members, updates, evaluations and the model. An evaluator over HTTP may miss a model while it
    evaluates another; what it has not missed is the same. The study's state lies in `study` beside the fleet's.
    """
    http = await over_http(server, fleet, settings_json, bundles, elsewhere, wrapped)
    study = await in_a_study(replace(fleet, state=fleet.state.with_name("study")), settings_json, bundles)

    assert study.model == http.model
    assert http.shown.task.state == study.shown.task.state == admin_pb2.TASK_STATE_FINISHED
    for ours, theirs in zip(study.shown.rounds, http.shown.rounds, strict=True):
        missed = () if getattr(theirs, "global") else ("global",)
        assert _without(ours, *TIMES, *missed) == _without(theirs, *TIMES)
    return study


def states(result: admin_pb2.RoundResult) -> list[admin_pb2.MemberState]:
    """The states of a round's members."""
    return [member.state for member in result.members]


def _without(result: admin_pb2.RoundResult, *fields: str) -> admin_pb2.RoundResult:
    plain = admin_pb2.RoundResult()
    plain.CopyFrom(result)
    for field in fields:
        plain.ClearField(field)
    return plain
