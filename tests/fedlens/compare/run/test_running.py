"""One run: interrupted, disturbed and late, always the same."""

import asyncio
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import nn

from fedlens.compare.run import running
from fedlens.compare.run.running import RunFailed, RunResult, run
from fedlens.compare.run.side_by_side import ClientWork, Helpers
from fedlens.compare.run_state import Changes, keep
from fedlens.digits import write_digits
from fedlens_edge_client.emulation.faults import FaultEntry, FaultKind, FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_edge_client.engines import NonFinite
from fedlens_edge_client.engines import torch as torch_engine
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.errors import AssignmentFailed, EdgeClientError
from fedlens_edge_client.training import local_training
from fedlens_edge_client.training.local_training import TrainingResult
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2, assignment_pb2, update_pb2
from tests.edge_client.emulation.fleets import fleet_of
from tests.fedlens.compare.run.runs import Stopped, settings, stop_after
from tests.integration import federation
from tests.integration.federation import SIDE

CLIENTS = 3


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federation.tiny_bundle(tmp_path_factory.mktemp("export") / "bundle").folder


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PhotoPool:
    whole = PhotoPool.open(write_digits(tmp_path_factory.mktemp("digits") / "photos"))
    return replace(whole, train=tuple(c[:12] for c in whole.train), test=tuple(c[:4] for c in whole.test))


def fleet(pool: PhotoPool, state: Path, *faults: FaultEntry) -> FleetConfig:
    partition = Partition(name=PartitionName.CAMERA_IID, seed=1, clients=CLIENTS, per_class=2, test_per_class=1)
    return fleet_of(pool, partition, state, plan=FaultPlan(fault=faults), shares_downloads=False)


async def ran(
    fleet: FleetConfig, bundle: Path, rounds: int, stopped_after: int | None = None, **others: Any
) -> RunResult:
    task = settings(CLIENTS, rounds=rounds, deadline_s=60, **others)
    return await run(fleet, task, (bundle,), on_commit=stop_after(stopped_after))


async def test_a_run_that_was_interrupted_goes_on_to_the_same_bytes(
    tmp_path: Path, pool: PhotoPool, bundle: Path
) -> None:
    with pytest.raises(Stopped):
        await ran(fleet(pool, tmp_path / "twice"), bundle, 3, stopped_after=1)
    # A resumed run repeats no round: it is not stopped once more.
    resumed = await ran(fleet(pool, tmp_path / "twice"), bundle, 3, stopped_after=1)
    calm = await ran(fleet(pool, tmp_path / "once"), bundle, 3)

    assert resumed.model == calm.model is not None
    for result in (*resumed.shown.rounds, *calm.shown.rounds):
        result.ClearField("bytes_sent")
    assert resumed.shown.rounds == calm.shown.rounds


async def test_a_run_goes_on_elsewhere_from_any_round_to_the_same_bytes(
    tmp_path: Path, pool: PhotoPool, bundle: Path
) -> None:
    here = fleet(pool, tmp_path / "here")
    changes, states = Changes(here.state), list[bytes]()
    task = settings(CLIENTS, rounds=3, deadline_s=60)
    calm = await run(here, task, (bundle,), on_commit=lambda progress: states.append(changes.take()))
    for number, state in enumerate(states[:-1]):
        keep(tmp_path / "kept", state)
        copytree(tmp_path / "kept", tmp_path / f"from-{number}")

        resumed = await run(fleet(pool, tmp_path / f"from-{number}"), task, (bundle,))

        assert resumed.model == calm.model is not None
        for result in (*resumed.shown.rounds, *calm.shown.rounds):
            result.ClearField("bytes_sent")
        assert resumed.shown.rounds == calm.shown.rounds
    assert len(states) == 3


async def test_a_round_lasts_until_its_commit_though_clients_go_on_at_once(
    tmp_path: Path, pool: PhotoPool, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, told, timed = list[int](), list[int](), threading.Event()
    execute = local_training.execute

    def now() -> float:
        count = len(trained)
        timed.set()
        return count

    def trains(assignment: assignment_pb2.Assignment, *others: Any, **named: Any) -> TrainingResult:
        if assignment.answer == assignment_pb2.ANSWER_UPDATE:  # an evaluator's is another
            if len(trained) % CLIENTS == 0:
                # The first in a round: the one before has been timed, or is being timed by another thread.
                assert timed.wait(20)
                timed.clear()
            trained.append(assignment.round)
        return execute(assignment, *others, **named)

    monkeypatch.setattr(running, "time", SimpleNamespace(perf_counter=now))
    monkeypatch.setattr(local_training, "execute", trains)

    task = settings(CLIENTS, rounds=4, deadline_s=60)
    await run(fleet(pool, tmp_path), task, (bundle,), on_round=lambda number, seconds: told.append(int(seconds)))

    assert told == [CLIENTS] * 4


async def test_the_time_of_a_round_is_told_before_anything_else_goes_on(
    tmp_path: Path, pool: PhotoPool, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, told = settings(CLIENTS, rounds=3), list[int]()

    async def killed_after(work: Callable[..., float], *arguments: Any) -> None:
        work(*arguments)
        raise Stopped

    async def go_on() -> None:
        await run(fleet(pool, tmp_path), task, (bundle,), on_round=lambda number, seconds: told.append(number))

    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr(asyncio, "to_thread", killed_after)
        await go_on()
    await go_on()

    assert told == [1, 2, 3]


async def test_every_round_of_the_global_model_is_measured(tmp_path: Path, pool: PhotoPool, bundle: Path) -> None:
    answer = await ran(fleet(pool, tmp_path), bundle, 5)

    assert [getattr(result, "global")[0].count for result in answer.shown.rounds] == [40] * 5


async def test_a_client_that_is_late_takes_no_time_and_one_that_is_too_late_is_left_out(
    tmp_path: Path, pool: PhotoPool, bundle: Path
) -> None:
    late = FaultEntry(client=0, round=1, kind=FaultKind.DELAY, seconds=50.0)
    too_late = FaultEntry(client=1, round=2, kind=FaultKind.DELAY, seconds=70.0)

    answer = await ran(fleet(pool, tmp_path, late, too_late), bundle, 2)

    reported = [
        sum(member.state == admin_pb2.MEMBER_STATE_REPORTED for member in result.members)
        for result in answer.shown.rounds
    ]
    assert reported == [3, 2]


@dataclass
class Pair:
    """Two helpers, which get their work and give their results as other processes do."""

    bundle: Path
    works: list[bytes] = field(default_factory=list)
    _both: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))

    @property
    def helpers(self) -> Helpers:
        return Helpers(2, self._carry_out)

    def _carry_out(self, work: ClientWork) -> TrainingResult | EdgeClientError:
        sent = pickle.dumps(work)
        self.works.append(sent)
        # Each waits for another one, which comes if clients train side by side.
        self._both.wait(60)
        engine = TorchEngine(Bundle.open(self.bundle))
        found = pickle.loads(pickle.dumps(pickle.loads(sent).carry_out(engine)))
        return cast("TrainingResult | EdgeClientError", found)


@pytest.mark.slow
async def test_helpers_train_clients_side_by_side_to_the_same_bytes(tmp_path: Path, pool: PhotoPool) -> None:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 8), nn.ReLU(), nn.Linear(8, 10))
    bundle = federation.digits_bundle(tmp_path / "bundle", layers, "two layers").folder
    pair = Pair(bundle)
    # Clients keep their classifiers, and one of them is late.
    others: dict[str, Any] = {"cohort": 2, "population": 3, "rounds": 4, "deadline_s": 60, "method": "fedper"}
    late = FaultEntry(client=0, round=2, kind=FaultKind.DELAY, seconds=50.0)
    found = []
    for state, helpers in ((tmp_path / "here", None), (tmp_path / "there", pair.helpers)):
        found.append(await run(fleet(pool, state, late), settings(CLIENTS, **others), (bundle,), helpers=helpers))
    here, there = found

    assert len(pair.works) == 8
    assert there.shown == here.shown


async def test_a_round_may_need_many_models_at_a_time(tmp_path: Path, pool: PhotoPool) -> None:
    # Seven centres of 0.8 MB each, of which parts of 1.2 MB and four models leave no room for the last.
    layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 1000), nn.ReLU(), nn.Linear(1000, 10))
    bundle = federation.digits_bundle(tmp_path / "bundle", layers, "two layers", candidates=7).folder

    answer = await ran(fleet(pool, tmp_path / "state"), bundle, 1, method="ifca")

    assert [member.state for member in answer.shown.rounds[0].members] == [admin_pb2.MEMBER_STATE_REPORTED] * CLIENTS


async def test_what_another_device_computes_of_photos_is_apart_from_what_the_cpu_does(
    tmp_path: Path, pool: PhotoPool, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_engine, "device_of", lambda name: None)  # no test machine needs one
    features, task = tmp_path / "features", settings(CLIENTS, rounds=1)
    found = []
    for device in ("cuda", "cpu"):
        await run(fleet(pool, tmp_path / device), task, (bundle,), features=features, device=device)
        found.append({str(file.relative_to(features)) for file in features.rglob("*.sqlite3")})

    assert found == [{"cuda/features.sqlite3"}, {"cuda/features.sqlite3", "features.sqlite3"}]


async def test_what_a_helper_fails_at_is_the_clients_failure(tmp_path: Path, pool: PhotoPool, bundle: Path) -> None:
    failure = pickle.dumps(AssignmentFailed(update_pb2.FAILURE_REASON_POLICY, "too few photos"))
    helpers = Helpers(2, lambda work: pickle.loads(failure))
    task = settings(CLIENTS, rounds=1, max_consecutive_abandoned=1)

    with pytest.raises(RunFailed, match=r"too few photos"):
        await run(fleet(pool, tmp_path), task, (bundle,), helpers=helpers)


async def test_a_task_that_fails_is_told_with_its_reason(tmp_path: Path, pool: PhotoPool, bundle: Path) -> None:
    gone = [FaultEntry(client=i, round=1, kind=FaultKind.VANISH) for i in range(CLIENTS)]

    with pytest.raises(RunFailed, match=r"failed after 0 of 2 rounds: rounds abandoned in a row: 1; .*: 0; needed: 1"):
        await ran(fleet(pool, tmp_path, *gone), bundle, 2, max_consecutive_abandoned=1)


async def test_an_evaluator_whose_results_are_refused_ends_the_run_with_the_reason(
    tmp_path: Path, pool: PhotoPool, bundle: Path
) -> None:
    # A client has 20 photos to train on, the evaluator 40.
    reason = r"the evaluator cannot measure the model of round 1: .*40.*30"

    async with asyncio.timeout(60):
        with pytest.raises(RunFailed, match=reason):
            await ran(fleet(pool, tmp_path), bundle, 2, max_photos_per_client=30)


async def test_an_evaluator_that_fails_ends_the_run_with_the_reason(
    tmp_path: Path, pool: PhotoPool, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = local_training.execute

    def fails(assignment: assignment_pb2.Assignment, *others: Any, **named: Any) -> TrainingResult:
        if assignment.answer == assignment_pb2.ANSWER_EVALUATION:
            raise NonFinite("the loss is not finite")
        return execute(assignment, *others, **named)

    monkeypatch.setattr(local_training, "execute", fails)

    async with asyncio.timeout(60):
        with pytest.raises(RunFailed, match="measure the model of round 1: the loss is not finite"):
            await ran(fleet(pool, tmp_path), bundle, 2)


async def test_a_task_that_pauses_itself_is_told_with_its_reason(
    tmp_path: Path, pool: PhotoPool, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = local_training.execute

    def worse_each_round(assignment: assignment_pb2.Assignment, *others: Any, **named: Any) -> TrainingResult:
        found = execute(assignment, *others, **named)
        if assignment.answer == assignment_pb2.ANSWER_UPDATE:
            return found
        measured = {label: replace(each, correct=40 // assignment.round) for label, each in found.evaluations.items()}
        return replace(found, evaluations=measured)

    monkeypatch.setattr(local_training, "execute", worse_each_round)

    # Round 3 has been opened when the model of round 2 is measured, and ends.
    reason = r"paused after 3 of 5 rounds: because accuracy fell: 50\.0 % after round 2, 100\.0 % after round 1"
    with pytest.raises(RunFailed, match=reason):
        await ran(fleet(pool, tmp_path), bundle, 5, pause_if_accuracy_falls=5)
