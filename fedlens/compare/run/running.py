"""One run of a study: a federation in this process, by the real round engine, methods, bundles and clients.

Clients train one after another in one thread. The clock stands still while anybody has something to do; when nobody
has, because the others have vanished or report late, it jumps to the moment at which something happens.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from fedlens.compare.run.direct_transport import DirectTransport, PatientTransport, WaitingRoom
from fedlens.compare.run.examination import AsMeasured, Examination
from fedlens.compare.run.study_clock import StudyClock
from fedlens_edge_client.client.client import EdgeClient
from fedlens_edge_client.client.events import Event, RoundReported
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.emulation.faulty_transport import FaultyTransport
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.storage.cache import Cache
from fedlens_edge_client.training.label_distribution import private_generator
from fedlens_proto import wire
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2, enrolment_pb2
from fedlens_server.engine.rounds import Change, Rounds, TokenGrant
from fedlens_server.errors import Unknown
from fedlens_server.store import Store

TASK = "study"
SERVER = "fedlens-study"
# A study's server has no enrolment tokens to guard; a role needs one all the same.
GRANTS = {
    "trainer": TokenGrant(name="trainer", role=enrolment_pb2.CLIENT_ROLE_TRAINER),
    "evaluator": TokenGrant(name="evaluator", role=enrolment_pb2.CLIENT_ROLE_EVALUATOR),
}
# Of what a client has downloaded it keeps the parts of bundles, and so many models.
_CACHED_MODELS = 4


class RunFailed(Exception):
    """A run did not come to its end; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Committed:
    """Told after each committed round, and at the end of a run; accuracies as last measured.

    Attributes:
        personal_accuracy: The mean over clients.
    """

    rounds: int
    rounds_total: int
    global_accuracy: float | None
    personal_accuracy: float | None


@dataclass(frozen=True)
class RunAnswer:
    """What a finished run says.

    Attributes:
        shown: The task as an operator sees it, without its rounds' times.
        model: The global model; None where the method has none, or one that is not one blob.
        examined: What `Examination.values` says; None where clients are no people.
    """

    shown: admin_pb2.ShowTaskResponse
    model: bytes | None
    examined: list[dict[str, Any]] | None = None


async def run(
    fleet: FleetConfig,
    settings_json: str,
    bundles: tuple[Path, ...],
    *,
    features: Path | None = None,
    device: str = "cpu",
    on_commit: Callable[[Committed], None] = lambda committed: None,
    on_round: Callable[[int, float], None] = lambda number, seconds: None,
) -> RunAnswer:
    """Run a federation to its end, or take up one that was interrupted.

    Args:
        fleet: Who takes part; its server is not used, its state folder holds everything.
        settings_json: Of the task.
        bundles: Their folders.
        features: Where what is computed of photos is kept, for further runs too; None: in the state folder.
        device: Where programs run, as torch names it.
        on_commit: Called after each committed round.
        on_round: Called with the number of each round that ends here and the seconds that it took.

    Raises:
        RunFailed: The task failed.
        EdgeClientError, ServerError: A client or the round engine cannot go on.
    """
    async with AsyncExitStack() as stack:
        store = Store.open(fleet.state / "server", durable=False)
        stack.callback(store.close)
        clock, room = StudyClock(), WaitingRoom()
        clock.on_sleep = room.moved.set
        rounds = Rounds(store, clock)
        stack.callback(rounds.close)
        loop = asyncio.get_running_loop()

        def changed(change: Change) -> None:
            if change.tasks:
                loop.call_soon_threadsafe(room.call)

        stack.callback(rounds.subscribe(changed))
        opened = [Bundle.open(folder) for folder in bundles]
        await _create(rounds, store, opened, settings_json)
        compute = stack.enter_context(ThreadPoolExecutor(1, "study-compute"))
        disk = stack.enter_context(ThreadPoolExecutor(1, "study-disk"))
        measured = _Measured()
        engines = _Engines(opened, device)
        examination = Examination.of(fleet)
        members = _Members(
            fleet, rounds, store, clock, room, opened, engines, features, compute, disk, measured, examination
        )
        clients = {index: asyncio.create_task(members.take_part(index), name=str(index)) for index in fleet.indices}
        try:
            await _drive(rounds, store, clock, room, clients, measured, on_commit, on_round)
        finally:
            for client in clients.values():
                client.cancel()
            await asyncio.wait(clients.values())
        answer = _answer(rounds)
        return answer if examination is None else replace(answer, examined=examination.values)


async def _create(rounds: Rounds, store: Store, bundles: list[Bundle], settings_json: str) -> None:
    for bundle in bundles:
        for part in bundle.manifest.parts:
            try:
                rounds.locate(part.sha256)
            except Unknown:
                with store.incoming() as incoming:
                    incoming.write(bundle.part(part.sha256).read_bytes())
                    await asyncio.wrap_future(rounds.put_part(incoming.finish(part.sha256)))
    request = admin_pb2.CreateTaskRequest(
        protocol=wire.PROTOCOL, name=TASK, manifests=[bundle.raw for bundle in bundles], settings_json=settings_json
    )
    await asyncio.wrap_future(rounds.create_task(request))


class _Engines:
    """One engine for each bundle, whichever client asks; used in the computing thread alone."""

    def __init__(self, bundles: list[Bundle], device: str) -> None:
        self._bundles = {bundle.id: bundle for bundle in bundles}
        self._device = device
        self._engines: dict[bytes, Engine] = {}

    def of(self, bundle: Bundle) -> Engine:
        """The engine of a bundle. Its programs are read where they were exported, where all of them are."""
        from fedlens_edge_client.engines.torch import TorchEngine

        if bundle.id not in self._engines:
            self._engines[bundle.id] = TorchEngine(self._bundles[bundle.id], self._device)
        return self._engines[bundle.id]


class _Measured:
    """The newest accuracies, from what clients report."""

    def __init__(self) -> None:
        self.global_accuracy: float | None = None
        self._round = 0
        self._personal: list[float] = []

    def hear(self, index: int, event: Event) -> None:
        if not isinstance(event, RoundReported) or event.start is None or not event.start.count:
            return
        accuracy = event.start.correct / event.start.count
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


@dataclass(frozen=True)
class _Members:
    """The clients of a run."""

    fleet: FleetConfig
    rounds: Rounds
    store: Store
    clock: StudyClock
    room: WaitingRoom
    bundles: list[Bundle]
    engines: _Engines
    features: Path | None
    compute: Executor
    disk: Executor
    measured: _Measured
    examination: Examination | None

    async def take_part(self, index: int) -> None:
        """Be one client until its tasks have ended, and be examined then if there is an examination."""
        fleet, secret = self.fleet, self.fleet.secret(index)
        transport: Transport = DirectTransport(self.rounds, self.store, GRANTS, secret)
        if index != EVALUATOR:
            transport = FaultyTransport(transport, fleet.plan, index, self.clock.sleep)
        if self.examination is not None:
            transport = AsMeasured(transport, fleet.folder(index).with_suffix(".measured"))
        cache = Cache(fleet.cache(index), self._cached_bytes)
        client = EdgeClient(
            SERVER,
            fleet.folder(index),
            fleet.album(index),
            enrolment_token="evaluator" if index == EVALUATOR else "trainer",
            models=fleet.models_of(index),
            on_event=lambda event: self._heard(index, cache, event),
            secret=secret,
            private_generator=partial(private_generator, secret),
            transport=PatientTransport(transport, self.room, index),
            engine_factory=self.engines.of,
            cache=cache.folder,
            features=self.features or fleet.features,
            executor=self.compute,
            disk=self.disk,
            hold_ms=0,
            durable=False,
        )
        async with client:
            await client.run()
            if self.examination is not None and index != EVALUATOR and _has_finished(self.rounds):
                self.examination.take(index, await client.classify(self.examination.entries))

    def _heard(self, index: int, cache: Cache, event: Event) -> None:
        self.measured.hear(index, event)
        if isinstance(event, RoundReported):
            cache.trim()

    @cached_property
    def _cached_bytes(self) -> int:
        parts = sum(part.size for bundle in self.bundles for part in bundle.manifest.parts)
        return parts + _CACHED_MODELS * max(bundle.initial().size for bundle in self.bundles)


async def _drive(
    rounds: Rounds,
    store: Store,
    clock: StudyClock,
    room: WaitingRoom,
    clients: dict[int, asyncio.Task[None]],
    measured: _Measured,
    on_commit: Callable[[Committed], None],
    on_round: Callable[[int, float], None],
) -> None:
    """Carry rounds on until all clients have ended."""
    started = time.perf_counter()

    def is_idle() -> bool:
        return len(room.waiting) + clock.sleeping + sum(client.done() for client in clients.values()) == len(clients)

    while not all(client.done() for client in clients.values()):
        for client in clients.values():
            if client.done():
                client.result()
        room.moved.clear()
        evaluator = clients.get(EVALUATOR)
        due = rounds.due()
        # The next commit would take the model away that is being evaluated.
        if due and (evaluator is None or evaluator.done() or EVALUATOR in room.waiting):
            for key in due:
                await asyncio.to_thread(rounds.advance, key)
                now = time.perf_counter()
                on_round(key.round, now - started)
                started = now
            (task,) = rounds.tasks().tasks
            on_commit(
                Committed(
                    rounds=task.rounds_committed,
                    rounds_total=task.rounds_total,
                    global_accuracy=measured.global_accuracy,
                    personal_accuracy=measured.personal_accuracy,
                )
            )
            continue
        if is_idle():
            # What was committed a moment ago may have started something: it is over when this is.
            await asyncio.wrap_future(store.submit(lambda transaction: None))
            await asyncio.sleep(0)
            if is_idle() and not rounds.due():
                times = [when for when in (clock.next_awake(), rounds.next_deadline()) if when is not None]
                if not times:
                    raise RunFailed("nothing is left to happen, and the task has not ended")
                clock.jump(min(times))
                room.call()
            continue
        moved = asyncio.create_task(room.moved.wait())
        await asyncio.wait([moved, *(c for c in clients.values() if not c.done())], return_when=asyncio.FIRST_COMPLETED)
        moved.cancel()
    for client in clients.values():
        client.result()


def _has_finished(rounds: Rounds) -> bool:
    (task,) = rounds.tasks().tasks
    return task.state == admin_pb2.TASK_STATE_FINISHED


def _answer(rounds: Rounds) -> RunAnswer:
    shown = rounds.show(TASK)
    task = shown.task
    if task.state != admin_pb2.TASK_STATE_FINISHED:
        state = admin_pb2.TaskState.Name(task.state).removeprefix("TASK_STATE_").lower()
        said = [f"; a client says: {m.reason}" for r in shown.rounds for m in r.members if m.reason][:1]
        raise RunFailed(
            f"the task is {state} after {task.rounds_committed} of {task.rounds_total} rounds: "
            f"{task.reason}{''.join(said)}"
        )
    # By the study's clock, which says nothing.
    for result in shown.rounds:
        result.ClearField("opened_at")
        result.ClearField("ended_at")
    try:
        model = rounds.model(TASK)
        found = rounds.locate(model.blob_sha256)
    except Unknown:
        return RunAnswer(shown, None)
    if model.extractors:
        return RunAnswer(shown, None)
    if found.raw is not None:
        return RunAnswer(shown, found.raw)
    assert found.path is not None  # one of both is set
    return RunAnswer(shown, found.path.read_bytes())
