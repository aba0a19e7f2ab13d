"""FedConcat through all its phases, over HTTP and in a study: the same bytes, whoever vanishes or sends NaN."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from fedlens.compare.plan import FLEET_KEY
from fedlens_edge_client.faults import FaultEntry, FaultKind, FaultPlan
from fedlens_edge_client.fleet.config import FleetConfig
from fedlens_edge_client.regimes import PhotoPool, Regime, RegimeName
from fedlens_proto.v1 import admin_pb2
from tests.integration import two_drivers
from tests.integration.processes import ServerProcess

CLIENTS = 8
SETTINGS = {
    "method": "fedconcat",
    "rounds": 5,
    "population": CLIENTS,
    "cohort": 6,
    "hyper": {"lr_extractor": 0.1, "lr_classifier": 0.1},
    "deadline_s": 4,
    "seed": sha256(b"fedconcat").hexdigest(),
}
OPTIONS = {"clusters": 2, "extractor_rounds": 2, "classifier_rounds": 2}
SHORT = {"codec": "int8", "difference": True, "download_codec": "int8", "download_difference": True}
# Bob vanishes in the clustering round, so that he has no cluster; Carol sends NaN while clusters train.
FAULTS = FaultPlan(
    fault=(
        FaultEntry(client=1, round=1, kind=FaultKind.VANISH),
        *(FaultEntry(client=2, round=n, kind=FaultKind.NAN) for n in (2, 3)),
    )
)


def fleet(folder: Path, photos: Path) -> FleetConfig:
    return FleetConfig(
        server="",
        clients=CLIENTS,
        pool=PhotoPool.open(photos),
        regime=Regime(name=RegimeName.CAMERA_NONIID, seed=3, clients=CLIENTS, per_class=3, test_per_class=2),
        plan=FAULTS,
        key=FLEET_KEY,
        state=folder,
        workers=1,
        evaluator_token="evaluator",
        shares_downloads=False,
    )


def tallies(result: admin_pb2.RoundResult) -> tuple[int, int]:
    """Members, and those that reported."""
    states = [member.state for member in result.members]
    return len(states), states.count(admin_pb2.MEMBER_STATE_REPORTED)


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"labels": "inferred", "random_images": 50, "start": "clusters"}, {}),
        pytest.param({"labels": "counts", "balanced": True}, SHORT, marks=pytest.mark.slow),
        pytest.param({"labels": "noisy", "epsilon": 5, "clusters": "elbow"}, {}, marks=pytest.mark.slow),
        pytest.param({"labels": "inferred", "random_images": 50}, SHORT, marks=pytest.mark.slow),
    ],
)
async def test_all_phases_give_the_same_bytes_over_http_and_in_a_study(
    tmp_path: Path,
    photos: Path,
    concatenating: list[Path],
    server: ServerProcess,
    options: dict[str, object],
    sent: dict[str, object],
) -> None:
    settings = json.dumps({**SETTINGS, **sent, "options": {**OPTIONS, **options}})

    http = await two_drivers.over_http(server, fleet(tmp_path / "http", photos), settings, concatenating)
    study = await two_drivers.in_a_study(fleet(tmp_path / "study", photos), settings, concatenating)

    two_drivers.assert_same(study, http)
    rounds = study.shown.rounds
    assert [result.phase for result in rounds] == [0, 1, 1, 2, 2]
    assert study.shown.task.state == admin_pb2.TASK_STATE_FINISHED
    assert tallies(rounds[0]) == (8, 7)
    assert admin_pb2.MEMBER_STATE_QUARANTINED in {member.state for result in rounds[1:3] for member in result.members}
    assert not any(getattr(result, "global") for result in rounds[:3])
    assert all(getattr(result, "global") for result in rounds[3:])
