"""One run of a study: a federation in this process with the product's round engine, methods, bundles and clients.

Clients train one after another, in the thread of the event loop: nothing else has to go on meanwhile. Or helpers train
them side by side. The clock stands still while a client is busy; when all are idle, because others have vanished or are
late, it jumps to the next deadline or wake-up.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from fedlens.compare.run.direct_downloads import DirectDownloads, SharedBlobs
from fedlens.compare.run.direct_transport import DirectTransport, IdleClients, LongPollTransport
from fedlens.compare.run.examination import EvaluatedModelTransport, Examination
from fedlens.compare.run.side_by_side import Helpers, InPlace, SideBySide
from fedlens.compare.run.study_clock import StudyClock
from fedlens.errors import FedlensError
from fedlens.reports.task_report import unfinished
from fedlens_edge_client.client.client import DEFAULT_CACHE_BYTES, EdgeClient
from fedlens_edge_client.client.events import Event, RoundFailed, RoundRefused, RoundReported, TasksFinished
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.faulty_transport import FaultyTransport
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.policy import EMULATED
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.training import local_training
from fedlens_edge_client.training.label_distribution import private_generator
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_proto import wire
from fedlens_proto.manifest import Bundle
from fedlens_proto.slots import references
from fedlens_proto.v1 import admin_pb2, enrolment_pb2, manifest_pb2
from fedlens_server.engine import aggregation, recovery
from fedlens_server.engine.cohorts.members import RoundKey
from fedlens_server.engine.operators import tasks
from fedlens_server.engine.operators.access import ADMIN, TokenGrant
from fedlens_server.engine.view import Change, Federation
from fedlens_server.errors import Unknown
from fedlens_server.planning.method import OWN_CLUSTER
from fedlens_server.store import Store

Sleep = Callable[[float], Awaitable[None]]
TASK = "study"
SERVER = "fedlens-study"
# A study's server has nothing to guard, but a role needs an enrolment token.
GRANTS = {
    "trainer": TokenGrant(name="trainer", role=enrolment_pb2.CLIENT_ROLE_TRAINER),
    "evaluator": TokenGrant(name="evaluator", role=enrolment_pb2.CLIENT_ROLE_EVALUATOR),
}
# A client caches the parts of all bundles and this many models, or more where a round needs more at a time.
_CACHED_MODELS = 4


class RunFailed(FedlensError):
    """A run did not finish; the text has the reason."""


@dataclass(frozen=True)
class RunProgress:
    """Committed rounds and the latest accuracies; `personal_accuracy` is the mean over clients."""

    rounds: int
    rounds_total: int
    global_accuracy: float | None
    personal_accuracy: float | None


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        shown: The task as an operator sees it, without its rounds' times.
        model: The global model; None if the method has none, or one that is not one blob.
        examined: `Examination.values`; None if clients are not people.
        clusters: The number of each client's cluster by the client's id; empty if the method has none on the server.
    """

    shown: admin_pb2.ShowTaskResponse
    model: bytes | None
    examined: list[dict[str, Any]] | None = None
    clusters: Mapping[bytes, int] = field(default_factory=dict[bytes, int])


async def run(
    fleet: FleetConfig,
    settings_json: str,
    bundles: tuple[Path, ...],
    *,
    features: Path | None = None,
    device: str = "cpu",
    helpers: Helpers | None = None,
    disturbed: Callable[[Transport, FaultPlan, int, Sleep], Transport] = FaultyTransport,
    on_commit: Callable[[RunProgress], None] = lambda committed: None,
    on_round: Callable[[int, float], None] = lambda number, seconds: None,
) -> RunResult:
    """Run a federation to its end, or resume one that was interrupted.

    Args:
        fleet: Clients and state folder; `fleet.server` is not used.
        settings_json: Settings of the task.
        bundles: Folders of the task's bundles.
        features: Folder of photos' features, which several runs may share; None: in the state folder. Those of another
            device than the CPU are in a folder of its name in there.
        device: Torch's name of the device that runs programs.
        helpers: Carry out the work of a round's clients; None: this process does, one client after the other.
        disturbed: Makes a trainer's transport from one that works, the fleet's faults, and its index.
        on_commit: Called after each committed round, while nobody writes to `fleet.state`.
        on_round: Called, in any thread, with the number of each round that ends and its duration in seconds.

    Raises:
        RunFailed: The task failed.
        EdgeClientError, ServerError: A client or the round engine cannot go on.
    """
    async with AsyncExitStack() as stack:
        store = Store.open(fleet.state / "server", durable=False)
        stack.callback(store.close)
        clock, idle = StudyClock(), IdleClients()
        clock.on_sleep = idle.activity.set
        federation = recovery.load(store, clock, method_modules=True)
        stack.callback(federation.close)
        loop = asyncio.get_running_loop()

        def changed(change: Change) -> None:
            if change.tasks or change.models:
                loop.call_soon_threadsafe(idle.wake)

        stack.callback(federation.subscribe(changed))
        cached = features or fleet.features
        # Devices differ in the last digits, and what the CPU finds must not depend on a run elsewhere.
        values = FeatureCache.in_folder(cached if device == "cpu" else cached / device, DEFAULT_CACHE_BYTES)
        stack.callback(values.close)
        opened = [Bundle.open(folder) for folder in bundles]
        await _create(federation, opened, settings_json)
        side_by_side = None
        if helpers is not None:
            side_by_side = stack.enter_context(SideBySide(helpers))
        members = _Members(
            fleet=fleet,
            federation=federation,
            clock=clock,
            idle=idle,
            shared=SharedBlobs(opened),
            device=device,
            features=values,
            disturbed=disturbed,
            side_by_side=side_by_side,
            examination=Examination.of(fleet),
        )
        clients = {index: asyncio.create_task(members.take_part(index), name=str(index)) for index in fleet.indices}
        try:
            await members.drive(clients, on_commit, on_round)
        finally:
            for client in clients.values():
                client.cancel()
            await asyncio.wait(clients.values())
        return _result(federation, members.examination)


def _advanced(federation: Federation, key: RoundKey, started: float, on_round: Callable[[int, float], None]) -> float:
    """End a round and tell its duration; returns when it ended.

    Before the event loop hears of it: clients may be through the next round by then, and after a kill in between no
    later command would end this round once more.
    """
    aggregation.advance(federation, key)
    now = time.perf_counter()
    on_round(key.round, now - started)
    return now


async def _create(federation: Federation, bundles: list[Bundle], settings_json: str) -> None:
    for bundle in bundles:
        for part in bundle.manifest.parts:
            try:
                federation.store.blobs.locate(part.sha256)
            except Unknown:
                with federation.store.incoming() as incoming:
                    incoming.write(bundle.part(part.sha256).read_bytes())
                    await asyncio.wrap_future(tasks.put_part(federation, incoming.finish(part.sha256)))
    request = admin_pb2.CreateTaskRequest(
        protocol=wire.PROTOCOL, name=TASK, manifests=[bundle.raw for bundle in bundles], settings_json=settings_json
    )
    await asyncio.wrap_future(tasks.create(federation, request, ADMIN))


class _LatestAccuracies:
    """The latest accuracies that clients have reported."""

    def __init__(self) -> None:
        self.global_accuracy: float | None = None
        self._round = 0
        self._personal: list[float] = []

    def hear(self, index: int, event: Event) -> None:
        if not isinstance(event, RoundReported):
            return
        # Evaluators measure the global model, trainers what they start from.
        start = event.evaluations.get("global" if index == EVALUATOR else "start")
        if start is None or not start.count:
            return
        accuracy = start.correct / start.count
        if index == EVALUATOR:
            self.global_accuracy = accuracy
            return
        if event.round_number != self._round:
            self._round = event.round_number
            self._personal.clear()
        self._personal.append(accuracy)

    @property
    def personal_accuracy(self) -> float | None:
        return fmean(self._personal) if self._personal else None


@dataclass(frozen=True, kw_only=True)
class _Members:
    """The clients of a run, and what they share; `engines`, one for each bundle, are for the computing thread alone."""

    fleet: FleetConfig
    federation: Federation
    clock: StudyClock
    idle: IdleClients
    shared: SharedBlobs
    device: str
    features: FeatureCache
    disturbed: Callable[[Transport, FaultPlan, int, Sleep], Transport]
    side_by_side: SideBySide | None
    examination: Examination | None
    engines: dict[bytes, Engine] = field(default_factory=dict)
    accuracies: _LatestAccuracies = field(default_factory=_LatestAccuracies)

    async def take_part(self, index: int) -> None:
        """Run one client until its tasks have ended; then examine its model if there is an examination."""
        fleet, secret = self.fleet, self.fleet.secret(index)
        direct = DirectTransport(self.federation, GRANTS, secret)
        transport: Transport = direct
        if index != EVALUATOR:
            transport = self.disturbed(transport, fleet.plan, index, self.clock.sleep)
        if self.examination is not None:
            transport = EvaluatedModelTransport(transport, fleet.folder(index).with_suffix(".measured"))
        # An examination, perhaps of a run that was resumed after its end, needs a model that the engine no longer has.
        examined = self.examination is not None
        client = EdgeClient(
            SERVER,
            fleet.folder(index),
            fleet.album(index),
            publishers=TRUST_SERVER,
            enrolment_token="evaluator" if index == EVALUATOR else "trainer",
            models=fleet.models_of(index),
            policy=EMULATED,
            on_event=partial(self.accuracies.hear, index),
            secret=secret,
            private_generator=partial(private_generator, secret),
            transport=LongPollTransport(transport, self.idle, index),
            engine_factory=self._engine,
            cache=fleet.cache(index) if examined else DirectDownloads(direct.locate, self.shared, self._cached_bytes),
            features=self.features,
            max_cache_bytes=self._cached_bytes,
            executor=self.side_by_side or InPlace(),
            disk=InPlace(),
            execute=local_training.execute if self.side_by_side is None else self.side_by_side.execute,
            hold_ms=0,
            durable=False,
        )
        async with client:
            while not isinstance(outcome := await client.run_once(), TasksFinished):
                # It would be given the same model again and again, and no round ends before it has measured that.
                if index == EVALUATOR and isinstance(outcome, RoundFailed | RoundRefused):
                    reason = outcome.detail if isinstance(outcome, RoundFailed) else outcome.message
                    raise RunFailed(f"the evaluator cannot measure the model of round {outcome.round_number}: {reason}")
            if self.examination is not None and index != EVALUATOR and _has_finished(self.federation):
                self.examination.take(index, await client.classify(self.examination.entries))

    def _engine(self, bundle: Bundle) -> Engine:
        from fedlens_edge_client.engines.torch import TorchEngine

        if bundle.id not in self.engines:
            # Programs come from the exported folder, because a client's copy may lack some.
            self.engines[bundle.id] = TorchEngine(self.shared.bundles[bundle.id], self.device)
        return self.engines[bundle.id]

    @cached_property
    def _cached_bytes(self) -> int:
        bundles = self.shared.bundles.values()
        parts = sum(part.size for bundle in bundles for part in bundle.manifest.parts)
        model = max(bundle.initial().size for bundle in bundles)
        at_a_time = max(_models_at_a_time(bundle.manifest) for bundle in bundles)
        return max(parts + _CACHED_MODELS * model, at_a_time * model)

    async def drive(
        self,
        clients: Mapping[int, asyncio.Task[None]],
        on_commit: Callable[[RunProgress], None],
        on_round: Callable[[int, float], None],
    ) -> None:
        """Advance rounds until all clients have ended."""
        federation, clock, idle = self.federation, self.clock, self.idle
        evaluator = clients.get(EVALUATOR)
        started = time.perf_counter()

        def active() -> list[asyncio.Task[None]]:
            """The clients that have not ended; raises the error of one that failed."""
            for client in clients.values():
                if client.done():
                    client.result()
            return [client for client in clients.values() if not client.done()]

        def is_idle() -> bool:
            return len(idle.waiting) + clock.sleeping == sum(not client.done() for client in clients.values())

        while working := active():
            idle.activity.clear()
            due = aggregation.due(federation)
            # The next commit would delete the model that the evaluator is working on.
            if due and (evaluator is None or evaluator.done() or EVALUATOR in idle.waiting):
                for key in due:
                    started = await asyncio.to_thread(_advanced, federation, key, started, on_round)
                (task,) = tasks.listed(federation).tasks
                accuracies = self.accuracies.global_accuracy, self.accuracies.personal_accuracy
                # The clients are in this thread, and the store's has no more to do when this has ended.
                federation.store.submit(lambda transaction: None).result()
                on_commit(RunProgress(task.rounds_committed, task.rounds_total, *accuracies))
            elif is_idle():
                # The last commit may have started work in the store: it has ended when this has.
                await asyncio.wrap_future(federation.store.submit(lambda transaction: None))
                await asyncio.sleep(0)
                if is_idle() and not aggregation.due(federation):
                    wakings = clock.next_awake(), aggregation.next_deadline(federation)
                    times = [when for when in wakings if when is not None]
                    if not times:
                        raise RunFailed(f"no client has work: {unfinished(tasks.show(federation, TASK))}")
                    clock.jump(min(times))
                    idle.wake()
            else:
                activity = asyncio.create_task(idle.activity.wait())
                await asyncio.wait([activity, *working], return_when=asyncio.FIRST_COMPLETED)
                activity.cancel()


def _models_at_a_time(manifest: manifest_pb2.Manifest) -> int:
    """The most downloads that a program of a bundle reads at a time; extractors side by side are a model at most."""
    return max(manifest.concatenated, *(len(references(program)) for program in manifest.programs))


def _has_finished(federation: Federation) -> bool:
    (task,) = tasks.listed(federation).tasks
    return task.state == admin_pb2.TASK_STATE_FINISHED


def _result(federation: Federation, examination: Examination | None) -> RunResult:
    shown = tasks.show(federation, TASK)
    if shown.task.state != admin_pb2.TASK_STATE_FINISHED:
        raise RunFailed(unfinished(shown))
    # Times of the study's clock mean nothing.
    for result in shown.rounds:
        result.ClearField("opened_at")
        result.ClearField("ended_at")
    (task,) = federation.tasks.values()
    clusters = {client: own[OWN_CLUSTER] for client, own in task.values.clients.items() if OWN_CLUSTER in own}
    return RunResult(shown, _model(federation), None if examination is None else examination.values, clusters)


def _model(federation: Federation) -> bytes | None:
    try:
        model = tasks.model(federation, TASK)
        found = federation.store.blobs.locate(model.blob_sha256)
    except Unknown:
        return None
    if model.extractors:
        return None
    if found.raw is not None:
        return found.raw
    assert found.path is not None  # one of both is set
    return found.path.read_bytes()
