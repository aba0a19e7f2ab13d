from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedlens_proto.blob import Array
from fedlens_server.methods.kt_pfl import (
    PAPER,
    REFERENCE,
    gradients,
    inner_products,
    row_losses,
    teacher_weights,
    updated,
)
from fedlens_server.planning.method import Method, NothingToAggregate, State, Update
from fedlens_server.planning.task_settings import SettingsError
from tests.server.fakes import ALICE, BOB, CAROL, DAVE
from tests.server.methods.golden import cases
from tests.server.methods.programs import check_plans, distilling
from tests.server.methods.tasks import after, begun, changed, made
from tests.server.networks import network, weights

THREE = (ALICE, BOB, CAROL)
TWO = np.array([[4.0, 0.0], [0.0, 4.0]])  # of two clients with s_1 = (2, 0, ...), s_2 = (0, 2, ...)


def answer(client: bytes, scores: Sequence[float]) -> Update:
    table: Array = np.tile(np.array(scores, np.float32), (3, 1))
    return Update(client=client, num_examples=1, values={"predictions": {"scores": table}})


def teacher(method: Method, state: State, client: bytes) -> list[float]:
    """One row of a client's teacher; all are equal."""
    sent = method.download(method.phases[1], state, client)
    assert sent is not None
    found: list[float] = sent["teacher"]["scores"][1].tolist()
    return found


def round_of(method: Method, state: State, *updates: Update, population: Sequence[bytes] = THREE) -> State:
    return after(method, state, updates, population=tuple(population))


def test_coefficients_losses_and_teachers_equal_the_worked_cases() -> None:
    for case in cases("ktpfl_06"):
        predictions, before = case.inputs["soft_predictions"], case.inputs["coefficients"]
        products, penalty, m = inner_products(list(predictions)), float(case.inputs["penalty"]), len(before)
        found = updated(products, before, penalty, float(case.inputs["step"]), m)
        case.check("row_losses", row_losses(products, before, penalty, m))
        case.check("coefficients", found)
        shares = np.array([teacher_weights(row, m) for row in found])
        case.check("teachers", np.einsum("kl,lpc->kpc", shares, predictions))
        case.check("alt_reference_coefficients", updated(products, before, penalty, 0.0, m, REFERENCE))


@pytest.mark.parametrize("clients", [3, 5])
def test_gradients_are_the_slopes_of_the_losses(clients: int) -> None:
    random = np.random.default_rng(0)
    products = inner_products(list(random.random((3, 4, 2))))
    at, bump = random.random((3, 3)), 1e-6

    slopes = np.zeros((3, 3))
    for column in range(3):
        moved = bump * np.eye(3)[column]
        up, down = (row_losses(products, at + sign * moved, 0.7, clients) for sign in (1, -1))
        slopes[:, column] = (up - down) / (2 * bump)

    np.testing.assert_allclose(gradients(products, at, 0.7, clients), slopes, atol=1e-8)


def test_a_plain_step_moves_each_row_to_its_own_predictions_and_rows_need_not_add_up_to_1() -> None:
    # c = 1/2: gradient of row 1 is 2 ((1/2 - 1) 4, 1/2 * 4) = (-4, 4); the penalty is 0 at 1/2.
    found = updated(TWO, np.full((2, 2), 0.5), 0.7, 0.01, 2)
    np.testing.assert_allclose(found, [[0.54, 0.46], [0.46, 0.54]])

    # c = 0: (-8, 0) + 0.7 * 2 * (0 - 1/2) / 2 = (-8.35, -0.35)
    np.testing.assert_allclose(updated(TWO, np.zeros((2, 2)), 0.7, 0.01, 2)[0], [0.0835, 0.0035])


def test_equal_predictions_share_alike_and_a_step_of_0_changes_nothing() -> None:
    found = updated(np.ones((2, 2)), np.full((2, 2), 0.5), 0.7, 0.5, 2)

    np.testing.assert_array_equal(found, np.full((2, 2), 0.5))
    np.testing.assert_array_equal(updated(TWO, np.eye(2) / 2, 0.7, 0.0, 2), np.eye(2) / 2)


@pytest.mark.parametrize(
    ("scale", "rate"),
    [
        # The mean of |gradient| of c = 1/2 is `scale`. 4 -> 0.8 -> 0.16 -> 0.032 -> 0.0064, which is too small: 0.032
        # again, then 0.0064 and 0.032 once more.
        (4.0, 1 / 125),
        # 0.05 -> 0.01, which is neither above nor below.
        (0.01, 1.0),
        # 0.000001 five times as large, five times.
        (1e-6, 5.0**5),
    ],
)
def test_the_references_rate_makes_a_step_of_a_hundredth(scale: float, rate: float) -> None:
    gradient = scale * np.array([-1.0, 1.0])
    expected = np.exp(5 * (0.5 - rate * gradient))

    found = updated(scale / 4 * TWO, np.full((2, 2), 0.5), 0.0, 0.0, 2, REFERENCE)

    np.testing.assert_allclose(found[0], expected / expected.sum(), rtol=1e-6)


def test_one_client_alone_is_its_own_teacher() -> None:
    for variant in (PAPER, REFERENCE):
        method = made("kt_pfl", distilling(), options={"variant": variant}, population=1)

        state = round_of(method, begun(method), answer(ALICE, [0.25, 0.75]), population=[ALICE])

        assert state.shared["coefficients"].tolist() == [[1.0]]
        assert teacher(method, state, ALICE) == [0.25, 0.75]


def test_clients_without_predictions_are_left_out_and_last_ones_stay() -> None:
    method = made("kt_pfl", distilling(), options={"step": 0})

    state = round_of(method, begun(method), answer(ALICE, [1, 0]), answer(BOB, [0, 1]))
    # Coefficients are 1/3, of which two are in: (1/3 s_a + 1/3 s_b) / (2/3), also for Carol and for Dave, who is new.
    for client in (*THREE, DAVE):
        np.testing.assert_allclose(teacher(method, state, client), [0.5, 0.5])

    state = round_of(method, state, answer(CAROL, [4, 4]))
    # All are in: 1/3 (1 + 0 + 4).
    np.testing.assert_allclose(teacher(method, state, ALICE), [5 / 3, 5 / 3], rtol=1e-6)


def test_a_forgotten_client_is_in_no_teacher_and_its_row_is_used_again() -> None:
    method = made("kt_pfl", distilling(), options={"step": 0})
    state = round_of(method, begun(method), answer(ALICE, [1, 0]), answer(BOB, [0, 1]), answer(CAROL, [9, 9]))

    rest = replace(state, clients={client: own for client, own in state.clients.items() if client != CAROL})
    np.testing.assert_allclose(teacher(method, rest, ALICE), [0.5, 0.5], rtol=1e-6)

    after_it = round_of(method, rest, answer(DAVE, [4, 4]), population=[ALICE, BOB, DAVE])
    assert after_it.clients[DAVE]["slot"] == state.clients[CAROL]["slot"]
    np.testing.assert_allclose(teacher(method, after_it, ALICE), [5 / 3, 5 / 3], rtol=1e-6)


def test_rows_keep_their_sum_when_clients_join() -> None:
    method = made("kt_pfl", distilling(), options={"step": 0})
    state = round_of(method, begun(method), *(answer(client, [1, 0]) for client in THREE))

    joined = round_of(method, state, answer(DAVE, [1, 0]), population=[*THREE, DAVE])

    np.testing.assert_allclose(joined.shared["coefficients"], np.full((4, 4), 0.25), rtol=1e-6)


def test_the_order_of_arrival_changes_no_bit() -> None:
    method = made("kt_pfl", distilling())
    sent = [answer(ALICE, [0.1, 0.9]), answer(BOB, [0.7, 0.3]), answer(CAROL, [0.4, 0.6])]

    one, other = (round_of(method, begun(method), *each) for each in (sent, sent[::-1]))

    np.testing.assert_array_equal(one.shared["coefficients"], other.shared["coefficients"])
    assert teacher(method, one, BOB) == teacher(method, other, BOB)


def test_nobody_has_a_teacher_where_nobody_has_predicted() -> None:
    method = made("kt_pfl", distilling())
    first, later = method.phases

    assert method.download(first, begun(method), ALICE) == {}
    assert method.download(later, begun(method), ALICE) is None
    assert method.download(later, begun(method), None) is None
    with pytest.raises(NothingToAggregate):
        round_of(method, begun(method), replace(answer(ALICE, [1, 0]), num_examples=0))


def test_with_weight_each_client_gets_its_own_sum_of_models_but_its_own_integers() -> None:
    method = made("kt_pfl", distilling(), options={"weight": True, "step": 0})
    (phase,) = method.phases
    state = begun(method, 7.0)
    updates = [Update(client=c, num_examples=1, values={"weights": weights(v)}) for c, v in ((ALICE, 1.0), (BOB, 4.0))]

    state = round_of(method, state, *updates)

    sent = method.download(phase, state, ALICE)
    assert sent is not None
    np.testing.assert_allclose(sent["target"]["fc.bias"], [2.5, 2.5])  # Carol has no model
    assert int(sent["target"]["bn.batches"]) == 1
    assert method.download(phase, state, CAROL) == {"target": state.shared["global"]}
    assert [(each.name, each.base) for each in phase.plan.uploads] == [("weights", "")]


def test_with_weight_coefficients_follow_from_all_float_tensors() -> None:
    method = made("kt_pfl", distilling(), options={"weight": True, "step": 0.1, "penalty": 0}, population=2)
    updates = [Update(client=c, num_examples=1, values={"weights": weights(v)}) for c, v in ((ALICE, 1.0), (BOB, 2.0))]

    state = round_of(method, begun(method), *updates, population=[ALICE, BOB])

    # All elements are 1 and 2: row 1 has error 1/2 (1 + 2) - 1 = 1/2, gradient 2 * 1/2 * (1, 2).
    np.testing.assert_allclose(state.shared["coefficients"][0], [0.5 - 0.1, 0.5 - 0.2], rtol=1e-6)


def test_the_plan_distils_from_the_second_round_on_and_predicts_with_the_tasks_temperature() -> None:
    bundle = distilling()
    method = made("kt_pfl", bundle, hyper={"temperature": 3.0, "lr_classifier": 0.5}, options={"distil_epochs": 2})

    check_plans(method, bundle)
    first, later = (phase.plan.instructions for phase in method.phases)
    assert ([each.value for each in first], [each.value for each in later]) == (
        ["start", "trained", "predictions"],
        ["start", "distilled", "trained", "predictions"],
    )
    assert later[1].train.epochs == 2
    for given in (later[1].train.hyper_values, later[3].derive.hyper_values):
        assert {each.name: each.value for each in given} == {"temperature": 3.0}
    assert {each.name for each in later[2].train.hyper_values} == {"lr_classifier"}


@pytest.mark.parametrize(
    ("bundle", "settings", "message"),
    [
        (network(), {}, r"objective: found 'cross_entropy', must be distil or distil_probabilities for kt_pfl"),
        (distilling(), {"options": {"variant": "printed"}}, r"variant: found 'printed'"),
        (
            distilling(),
            {"options": {"variant": "reference", "step": 0.5}},
            r'step: found 0.5, must be left out, since options.variant is "reference"',
        ),
        (
            network(),
            {"options": {"weight": True, "distil_epochs": 2}},
            r"distil_epochs: found 2, must be left out, since options.weight is true",
        ),
        (
            changed(distilling(), programs=list(distilling().parsed.programs)[:3]),
            {},
            r"without program 'predictions', must be one with it for kt_pfl; export the bundle with .*--public DIR",
        ),
    ],
)
def test_what_does_not_fit_is_refused(bundle: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        made("kt_pfl", bundle, **settings)
