"""Every method with real clients, over HTTP and in a study: the same bytes, also with clients that fail.

So a number of `fedlens compare` is a statement about the product. FedConcat has more tests of its own.
"""

from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client.emulation.faults import FaultKind
from fedlens_proto.v1 import admin_pb2
from fedlens_server.methods import METHODS
from tests.integration import two_drivers
from tests.integration.conftest import FittingBundles, NewBundle
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
    pytest.param(
        *("fedavg", ["small"], "cross_entropy", {"batch_norm": "local_statistics", **FINE_TUNED}),
        marks=pytest.mark.slow,
    ),
    pytest.param("fedrep", ["small"], "cross_entropy", {"options": {"extractor_epochs": 2}}, marks=pytest.mark.slow),
    pytest.param("local_only", ["small", "wide"], "cross_entropy", {}, marks=pytest.mark.slow),
]
CENTRES = {"clusters": 2}
CONCATENATED = {"clusters": 2, "extractor_rounds": 2, "classifier_rounds": 1}
# Those with plans of other instructions than FedAvg's, or with state of their own on the server; their bundles are what
# the method says.
OTHERS: list[tuple[str, dict[str, Any], bool]] = [  # the last: there is a global model
    ("ditto", {}, True),
    ("fedap", {"options": {"warm_up": 0.4}}, False),
    ("fedap", {"options": {"warm_up": 0.4, "statistics": "recomputed"}}, False),
    ("fedavgm", {}, True),
    ("fedbn", {}, False),
    ("fedconcat", {"options": {**CONCATENATED, "clustering": "ifca"}}, False),
    ("fedconcat", {"options": {**CONCATENATED, "clustering": "fedsoft"}, "hyper": {"mu": 0.1}}, False),
    ("fedconcat", {"options": {**CONCATENATED, "clustering": "fesem"}, "hyper": {"mu": 0.1}}, False),
    ("feddyn", {"hyper": {"alpha": 0.1}}, True),
    ("feddyn", {"hyper": {"alpha": 0.1}, "options": {"dual": "client"}}, True),
    ("fedfomo", {"options": {"share_models": True, "others": 2}}, False),
    ("fedgen", {}, True),
    ("fedlc", {}, True),
    ("fedmd", {}, False),
    ("fedproto", {}, False),
    ("fedrs", {}, True),
    ("fedsoft", {"options": CENTRES}, False),
    ("fesem", {"options": CENTRES}, False),
    ("ifca", {"options": CENTRES}, False),
    ("ifca", {"options": {**CENTRES, "averaging": "gradients", "share_extractor": True}}, False),
    ("kt_pfl", {}, False),
    ("kt_pfl", {"options": {"weight": True}}, False),
    ("moon", {}, True),
    ("per_fedavg", {}, True),
    ("scaffold", {}, True),
]
# Each has another instruction, or another kind of rows; the rest is long.
KINDS_OF_PLANS: list[tuple[str, dict[str, Any]]] = [("fedproto", {}), ("ifca", {"options": CENTRES}), ("kt_pfl", {})]
HAS_GLOBAL_MODEL = {"fedavg", "fedns", "fedavg_last_fc", "fedprox"}


def labels(member: admin_pb2.MemberResult) -> set[str]:
    return {entry.label for entry in member.evaluations}


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
    measured = {label for member in study.shown.rounds[-1].members for label in labels(member)}
    assert measured == {"start", *(["fine_tuned"] if "personal_fine_tuning" in more else [])}


def title(method: str, more: dict[str, Any]) -> str:
    """The name of a case, such as `feddyn-client`."""
    return "-".join([method, *(str(value) for value in more.get("options", {}).values() if isinstance(value, str))])


def test_every_method_is_among_the_cases() -> None:
    cases = {getattr(case, "values", case)[0] for case in CASES} | {method for method, *_ in OTHERS}

    assert cases | {"pfedsim"} == set(METHODS)


@pytest.mark.parametrize(
    ("method", "more", "has_global"),
    [
        pytest.param(
            *case,
            id=title(case[0], case[1]),
            marks=pytest.mark.slow if case[:2] in KINDS_OF_PLANS else pytest.mark.long,
        )
        for case in OTHERS
    ],
)
async def test_so_does_a_method_with_a_plan_of_its_own(
    tmp_path: Path,
    photos: Path,
    fitting: FittingBundles,
    server: ServerProcess,
    method: str,
    more: dict[str, Any],
    has_global: bool,
) -> None:
    settings = two_drivers.settings(method, **{"rounds": 3, "personal_evaluation": method != "fedconcat", **more})
    # By the second round there is a state, of clients and of the server, for what goes wrong to be seen in.
    faults = [(index, 2, kind) for index, kind in enumerate(KINDS)]
    fleet = two_drivers.fleet(tmp_path / "http", photos, faults=faults)

    study = await two_drivers.both(server, fleet, settings, fitting(method, more.get("options", {})))

    assert [len(found.members) for found in study.shown.rounds][:3] == [two_drivers.CLIENTS] * 3
    states = two_drivers.states(study.shown.rounds[1])
    # One sent NaN, in a table if it sent one; one was not seen; of what came twice the server took one.
    assert states.count(admin_pb2.MEMBER_STATE_QUARANTINED) == 1
    assert states.count(admin_pb2.MEMBER_STATE_REPORTED) == two_drivers.CLIENTS - 2
    assert (study.model is not None) == has_global


@pytest.mark.slow
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


@pytest.mark.slow
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
