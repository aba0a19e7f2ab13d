"""Every method with real clients, over HTTP and in a study: the same bytes, also with clients that fail.

Those with more than one phase have tests of their own.
"""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client.emulation.faults import FaultEntry, FaultKind, FaultPlan
from fedlens_proto.v1 import admin_pb2
from tests.integration import two_drivers
from tests.integration.conftest import NewBundle
from tests.integration.processes import ServerProcess

CLIENTS = 8
WEIGHT = {"options": {"weight": True}}
CASES = [
    ("fedclassavg", ["small", "wide"], "supcon", {}),
    pytest.param("fedavg", ["small"], "cross_entropy", {}, marks=pytest.mark.slow),
    pytest.param("fedns", ["small"], "cross_entropy", {}, marks=pytest.mark.slow),
    pytest.param("fedavg_last_fc", ["small"], "cross_entropy", {}, marks=pytest.mark.slow),
    pytest.param("fedclassavg", ["small"], "classifier_proximal", WEIGHT, marks=pytest.mark.slow),
    pytest.param("fedprox", ["small"], "proximal", {"hyper": {"mu": 0.1}}, marks=pytest.mark.slow),
    pytest.param("fedper", ["small"], "cross_entropy", {}, marks=pytest.mark.slow),
    pytest.param("fedrep", ["small"], "cross_entropy", {"options": {"classifier_epochs": 2}}, marks=pytest.mark.slow),
    pytest.param("local_only", ["small", "wide"], "cross_entropy", {}, marks=pytest.mark.slow),
]
HAS_GLOBAL_MODEL = {"fedavg", "fedns", "fedavg_last_fc", "fedprox"}


@pytest.mark.parametrize(("method", "models", "objective", "more"), CASES)
async def test_a_study_and_the_server_give_the_same_bytes_with_clients_that_vanish_or_send_nan(
    tmp_path: Path,
    images: Path,
    exported: NewBundle,
    server: ServerProcess,
    method: str,
    models: list[str],
    objective: str,
    more: dict[str, Any],
) -> None:
    settings = {
        "method": method,
        "rounds": 2,
        "population": CLIENTS,
        "epochs": 1,
        "deadline_s": 6,
        "personal_evaluation": True,
        "seed": sha256(method.encode()).hexdigest(),
        **more,
        "hyper": {"lr_extractor": 0.05, "lr_classifier": 0.05, **more.get("hyper", {})},
    }
    kinds = (FaultKind.VANISH, FaultKind.NAN, FaultKind.DUPLICATE)
    fleet = two_drivers.fleet(
        tmp_path / "http",
        images,
        CLIENTS,
        plan=FaultPlan(fault=tuple(FaultEntry(client=i, round=1, kind=kind) for i, kind in enumerate(kinds))),
        models=tuple(models) if len(models) > 1 else (),
    )
    bundles = [exported(name, objective) for name in models]

    http = await two_drivers.over_http(server, fleet, json.dumps(settings), bundles)
    study = await two_drivers.in_a_study(replace(fleet, state=tmp_path / "study"), json.dumps(settings), bundles)

    two_drivers.assert_same(study, http)
    assert http.shown.task.state == admin_pb2.TASK_STATE_FINISHED
    assert [len(found.members) for found in http.shown.rounds] == [CLIENTS] * 3
    has_global = method in HAS_GLOBAL_MODEL or more.get("options", {}).get("weight", False)
    assert (http.model is not None) == has_global
