"""A number of `fedlens compare` is a statement about the product: the real server gives the same, to the last bit."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from fedlens_edge_client.emulation.faults import FaultEntry, FaultKind, FaultPlan
from tests.integration import two_drivers
from tests.integration.processes import ServerProcess

CLIENTS = 5


async def test_a_study_and_the_server_give_the_same_bytes_with_a_client_that_vanishes_and_one_that_sends_nan(
    tmp_path: Path, photos: Path, bundle: Path, server: ServerProcess
) -> None:
    settings = json.dumps(
        {
            "method": "fedavg",
            "rounds": 3,
            "population": CLIENTS,
            "cohort": 4,
            "epochs": 2,
            "hyper": {"lr_classifier": 0.1},
            "deadline_s": 6,
            "confusion": True,
            "personal_evaluation": True,
            "seed": sha256(b"two drivers").hexdigest(),
        }
    )
    # Whoever is in the cohort of the first round: each client has one fault there, and one comes twice in the second.
    kinds = (FaultKind.VANISH, FaultKind.NAN, FaultKind.DUPLICATE, FaultKind.CORRUPT, FaultKind.DUPLICATE)
    first = [FaultEntry(client=i, round=1, kind=kind) for i, kind in enumerate(kinds)]
    plan = FaultPlan(fault=(*first, FaultEntry(client=0, round=2, kind=FaultKind.DUPLICATE)))
    settings_fleet = two_drivers.fleet(tmp_path / "http", photos, CLIENTS, plan=plan, evaluator_token="evaluator")

    http = await two_drivers.over_http(server, settings_fleet, settings, [bundle])
    study = await two_drivers.in_a_study(replace(settings_fleet, state=tmp_path / "study"), settings, [bundle])

    assert http.model is not None
    states = {member.reason for member in study.shown.rounds[0].members}
    assert len(states) > 1
    two_drivers.assert_same(study, http)
