from typing import Any

import numpy as np
import pytest

from fedlens_server.methods.fedproto import global_prototypes
from fedlens_server.planning.method import State, Update
from fedlens_server.planning.task_settings import SettingsError
from tests.server.fakes import ALICE, BOB, CAROL
from tests.server.methods.golden import cases
from tests.server.methods.programs import check_plans, prototyping
from tests.server.methods.tasks import after, begun, changed, made
from tests.server.networks import network

NONE = [[0.0, 0.0], [0.0, 0.0]]


def answer(client: bytes, prototypes: Any, has: list[float]) -> Update:
    table = {"prototypes": np.array(prototypes, np.float32), "has": np.array(has, np.float32)}
    return Update(client=client, num_examples=5, values={"prototypes": table})


def shared(state: State) -> tuple[list[list[float]], list[float]]:
    table = state.shared["prototypes"]
    return table["prototypes"].tolist(), table["has"].tolist()


def test_prototypes_equal_the_worked_cases() -> None:
    for case in cases("fedproto"):
        given = case.inputs
        found, has = global_prototypes(*(given[name] for name in ("prototypes", "has", "previous", "previous_has")))
        case.check("prototypes", found)
        case.check("has", has)


def test_the_mean_is_plain_and_over_those_who_have_the_class() -> None:
    # Class 0: (1 + 3) / 2; class 1: one client alone.
    found, has = global_prototypes([[[1.0], [7.0]], [[3.0], [5.0]]], [[1, 0], [1, 1]], [[0.0], [0.0]], [0, 0])

    assert (found.tolist(), has.tolist()) == ([[2.0], [5.0]], [1.0, 1.0])


def test_the_middle_of_a_class_is_over_those_who_have_it() -> None:
    method = made("fedproto", prototyping(), median=True)
    has = {ALICE: [1, 1], BOB: [1, 0], CAROL: [1, 1]}
    rows = {ALICE: [[1, 5], [4, 4]], BOB: [[3e38, 6], [-3e38, 0]], CAROL: [[2, -3e38], [8, 4]]}

    state = after(method, begun(method), [answer(client, rows[client], has[client]) for client in has])

    # Class 0: the median of 1, 3e38, 2 and of 5, 6, -3e38; class 1: the mean of the two that have it.
    assert shared(state) == ([[2.0, 5.0], [6.0, 4.0]], [1.0, 1.0])
    mean = made("fedproto", prototyping(), trimmed_mean=0.34)
    assert shared(after(mean, begun(mean), [answer(client, rows[client], has[client]) for client in has])) == (
        [[2.0, 5.0], [6.0, 4.0]],
        [1.0, 1.0],
    )


@pytest.mark.parametrize("nothing", [9.0, np.nan, np.inf])
def test_what_a_client_sends_for_a_class_that_it_has_not_does_not_count(nothing: float) -> None:
    found, has = global_prototypes([[[nothing], [nothing]], [[3.0], [nothing]]], [[0, 0], [1, 0]], NONE, [0, 0])

    assert (found[:, 0].tolist(), has.tolist()) == ([3.0, 0.0], [1.0, 0.0])


def test_a_class_that_nobody_has_keeps_its_prototype_and_one_never_seen_has_none() -> None:
    found, has = global_prototypes([[[1.0], [1.0]]], [[0, 0]], [[4.0], [8.0]], [1, 0])

    assert (found.tolist(), has.tolist()) == ([[4.0], [0.0]], [1.0, 0.0])


def test_the_first_download_has_no_prototypes_and_the_next_one_those_of_the_round() -> None:
    method = made("fedproto", prototyping())
    state = begun(method)

    assert shared(state) == (NONE, [0.0, 0.0])
    state = after(method, state, [answer(ALICE, [[1, 2], [0, 0]], [1, 0]), answer(BOB, [[3, 4], [5, 6]], [1, 1])])
    assert shared(state) == ([[2.0, 3.0], [5.0, 6.0]], [1.0, 1.0])
    state = after(method, state, [answer(CAROL, [[9, 9], [0, 0]], [1, 0])])
    assert shared(state) == ([[9.0, 9.0], [5.0, 6.0]], [1.0, 1.0])
    assert method.download(method.phases[0], state, ALICE) == {"prototypes": state.shared["prototypes"]}
    assert method.download(method.phases[0], state, None) is None


def test_the_order_of_arrival_changes_no_bit() -> None:
    method = made("fedproto", prototyping())
    sent = [answer(c, [[x, 1], [0, 0]], [1, 0]) for c, x in ((ALICE, 0.1), (BOB, 1e8), (CAROL, -1e8))]

    one, other = (after(method, begun(method), each) for each in (sent, sent[::-1]))

    assert shared(one) == shared(other)


def test_clients_keep_their_models_and_upload_prototypes_alone() -> None:
    bundle = prototyping()
    method = made("fedproto", bundle, hyper={"lambda": 0.5})

    check_plans(method, bundle)
    plan = method.phases[0].plan
    assert ([each.name for each in plan.uploads], [each.state for each in plan.keeps]) == (["prototypes"], ["model"])
    assert [(each.label, each.value, each.program) for each in plan.evaluations] == [
        ("start", "start", ""),
        ("trained", "trained", ""),
        ("nearest", "trained", "predict_nearest"),
    ]


def test_bundles_without_the_objective_or_its_programs_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"objective: found 'cross_entropy', must be prototypes"):
        made("fedproto", network())
    without = changed(prototyping(), programs=list(prototyping().parsed.programs)[:3])
    with pytest.raises(SettingsError, match=r"program 'class_means', must be .* with --objective prototypes"):
        made("fedproto", without)
