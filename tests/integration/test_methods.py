"""Every method with real clients, over HTTP and in a study: the same bytes, also with clients that fail.

So a number of `fedlens compare` is a statement about the product. FedConcat has tests of its own.
"""

from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client.emulation.faults import FaultKind
from fedlens_proto.v1 import admin_pb2, update_pb2
from tests.integration import two_drivers
from tests.integration.conftest import NewBundle
from tests.integration.processes import ServerProcess

KINDS = (FaultKind.VANISH, FaultKind.NAN, FaultKind.DUPLICATE)
WEIGHT = {"options": {"weight": True}}
FINE_TUNED = {"personal_fine_tuning": True}
CASES = [
    pytest.param("fedclassavg", ["small", "wide"], "supcon", {}, marks=pytest.mark.slow),
    ("fedavg", ["small"], "cross_entropy", {}),
    pytest.param("fedns", ["small"], "cross_entropy", {}, marks=pytest.mark.slow),
    pytest.param("fedavg_last_fc", ["small"], "cross_entropy", {}, marks=pytest.mark.slow),
    pytest.param("fedclassavg", ["small"], "classifier_proximal", WEIGHT, marks=pytest.mark.slow),
    pytest.param("fedprox", ["small"], "proximal", {"hyper": {"mu": 0.1}, **FINE_TUNED}, marks=pytest.mark.slow),
    pytest.param("fedper", ["small"], "cross_entropy", {}, marks=pytest.mark.slow),
    pytest.param("fedper", ["small"], "cross_entropy", {"batch_norm": "local", **FINE_TUNED}, marks=pytest.mark.slow),
    ("fedavg", ["small"], "cross_entropy", {"batch_norm": "local_statistics", **FINE_TUNED}),
    pytest.param("fedrep", ["small"], "cross_entropy", {"options": {"extractor_epochs": 2}}, marks=pytest.mark.slow),
    pytest.param("local_only", ["small", "wide"], "cross_entropy", {}, marks=pytest.mark.slow),
]
HAS_GLOBAL_MODEL = {"fedavg", "fedns", "fedavg_last_fc", "fedprox"}


def moments(member: admin_pb2.MemberResult) -> set[update_pb2.EvaluationMoment]:
    return {entry.moment for entry in member.evaluations}


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
    settings = two_drivers.settings(method, personal_evaluation=True, **more)
    faults = [(index, 1, kind) for index, kind in enumerate(KINDS)]
    fleet = two_drivers.fleet(tmp_path / "http", images, faults=faults, models=tuple(models))

    study = await two_drivers.both(server, fleet, settings, [exported(name, objective) for name in models])

    assert [len(found.members) for found in study.shown.rounds] == [two_drivers.CLIENTS] * 3
    has_global = method in HAS_GLOBAL_MODEL or more.get("options", {}).get("weight", False)
    assert (study.model is not None) == (has_global and "batch_norm" not in more)
    measured = {moment for member in study.shown.rounds[-1].members for moment in moments(member)}
    fine_tuned = {update_pb2.EVALUATION_MOMENT_FINE_TUNED} if "personal_fine_tuning" in more else set()
    assert measured == {update_pb2.EVALUATION_MOMENT_START, *fine_tuned}


async def test_so_do_both_phases_of_pfedsim(
    tmp_path: Path, images: Path, exported: NewBundle, server: ServerProcess
) -> None:
    more = {"rounds": 4, "epochs": 2, "cohort": 6, "options": {"warm_up": 0.25}, "personal_evaluation": True}
    # In the cohorts of both personal rounds somebody vanishes, sends NaN or comes twice; one vanishes in the warm-up.
    faults = [(index, 3, kind) for index, kind in enumerate(KINDS)]
    faults += [(index, 1, FaultKind.VANISH) for index in (4, 5, 6)]
    fleet = two_drivers.fleet(tmp_path / "http", images, faults=faults)
    bundles = [exported("small", "cross_entropy")]

    study = await two_drivers.both(server, fleet, two_drivers.settings("pfedsim", **more), bundles)

    assert study.model is None
    assert [found.phase for found in study.shown.rounds] == [0, 1, 1, 1, 2]
    states = set(two_drivers.states(study.shown.rounds[2]))
    assert {admin_pb2.MEMBER_STATE_REPORTED, admin_pb2.MEMBER_STATE_QUARANTINED} <= states
    # The last phase: everybody evaluates the mix of its own.
    assert len(study.shown.rounds[4].members) == two_drivers.CLIENTS


async def test_so_does_a_cohort_with_every_fault_beside_an_evaluator(
    tmp_path: Path, photos: Path, bundle: Path, server: ServerProcess
) -> None:
    more = {"rounds": 3, "population": 5, "cohort": 4, "epochs": 2, "confusion": True, "personal_evaluation": True}
    # Whoever is in the cohort of the first round: each client has one fault there, and one comes twice in the second.
    kinds = (*KINDS, FaultKind.CORRUPT, FaultKind.DUPLICATE)
    faults = [*((index, 1, kind) for index, kind in enumerate(kinds)), (0, 2, FaultKind.DUPLICATE)]
    fleet = two_drivers.fleet(tmp_path / "http", photos, 5, faults, evaluator_token="evaluator")

    study = await two_drivers.both(server, fleet, two_drivers.settings("fedavg", **more), [bundle])

    assert study.model is not None
    assert len({member.reason for member in study.shown.rounds[0].members}) > 1
