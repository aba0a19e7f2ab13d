"""One run: interrupted, disturbed and late, always the same."""

from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from fedlens.compare.run.running import RunFailed, RunResult, run
from fedlens.compare.run_state import Changes, keep
from fedlens.digits import write_digits
from fedlens_edge_client.emulation.faults import FaultEntry, FaultKind, FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_proto.v1 import admin_pb2
from tests.edge_client.emulation.fleets import fleet_of
from tests.fedlens.compare.run.runs import Stopped, settings, stop_after
from tests.integration import federation

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


async def test_a_task_that_fails_is_told_with_its_reason(tmp_path: Path, pool: PhotoPool, bundle: Path) -> None:
    gone = [FaultEntry(client=i, round=1, kind=FaultKind.VANISH) for i in range(CLIENTS)]

    with pytest.raises(RunFailed, match=r"failed after 0 of 2 rounds: 1 rounds were abandoned .* 0 valid updates"):
        await ran(fleet(pool, tmp_path, *gone), bundle, 2, max_consecutive_abandoned=1)
