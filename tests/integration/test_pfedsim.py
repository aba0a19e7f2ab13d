"""pFedSim through both phases with real clients: over HTTP, in a study, and with clients that fail."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from torch import nn

from fedlens_edge_client.emulation.faults import FaultEntry, FaultKind, FaultPlan
from fedlens_export.exporting import Training, whole_model_bundle
from fedlens_proto.v1 import admin_pb2
from tests.integration import two_drivers
from tests.integration.federation import SIDE
from tests.integration.processes import ServerProcess

CLIENTS, ROUNDS = 8, 4
SETTINGS = {
    "method": "pfedsim",
    "rounds": ROUNDS,
    "population": CLIENTS,
    "cohort": 6,
    "epochs": 2,
    "deadline_s": 6,
    "hyper": {"lr_extractor": 0.05, "lr_classifier": 0.05},
    "options": {"warm_up": 0.25},
    "personal_evaluation": True,
    "seed": sha256(b"pfedsim").hexdigest(),
}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a convolution with BatchNorm and an FC layer."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, 10)
    )
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.01)
    training = Training(class_names=tuple(str(digit) for digit in range(10)), batch=16)
    return whole_model_bundle(tmp_path_factory.mktemp("network") / "bundle", model, training, SIDE, name="tiny").folder


async def test_a_study_and_the_server_give_the_same_bytes_with_clients_that_vanish_or_send_nan(
    tmp_path: Path, images: Path, network: Path, server: ServerProcess
) -> None:
    # In the cohorts of both personal rounds somebody vanishes, sends NaN or comes twice; one vanishes in the warm-up.
    kinds = (FaultKind.VANISH, FaultKind.NAN, FaultKind.DUPLICATE)
    faults = [FaultEntry(client=i, round=3, kind=kind) for i, kind in enumerate(kinds)]
    faults += [FaultEntry(client=i, round=1, kind=FaultKind.VANISH) for i in (4, 5, 6)]
    fleet = two_drivers.fleet(tmp_path / "http", images, CLIENTS, plan=FaultPlan(fault=tuple(faults)))

    http = await two_drivers.over_http(server, fleet, json.dumps(SETTINGS), [network])
    study = await two_drivers.in_a_study(replace(fleet, state=tmp_path / "study"), json.dumps(SETTINGS), [network])

    two_drivers.assert_same(study, http)
    assert http.shown.task.state == admin_pb2.TASK_STATE_FINISHED
    assert http.model is None
    assert [found.phase for found in http.shown.rounds] == [0, 1, 1, 1, 2]
    states = {member.state for member in http.shown.rounds[2].members}
    assert {admin_pb2.MEMBER_STATE_REPORTED, admin_pb2.MEMBER_STATE_QUARANTINED} <= states
    # The last phase: everybody evaluates the mix of its own.
    assert len(http.shown.rounds[4].members) == CLIENTS
