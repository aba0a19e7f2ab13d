from typing import Any

import numpy as np
import pytest

from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods.scaffold import next_control
from fedlens_server.planning.method import NothingToAggregate, State
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import TinyBundle
from tests.server.fakes import ALICE, BOB, CAROL, client_ids
from tests.server.methods.programs import Extended, check_plans
from tests.server.methods.tasks import after, begun, made, update
from tests.server.methods.test_feddyn import TRAINED
from tests.server.networks import network, weights


def correcting(optimiser: str = "sgd", *, rate: float = 0.5, batch: int = 4) -> TinyBundle:
    """With objective `dynamic`; learning rates 0.1 and `rate`."""
    extended = Extended("dynamic")
    extended.step.optimiser = optimiser
    extended.manifest.batch = batch
    by_row = (manifest_pb2.SLOT_KIND_INPUT, manifest_pb2.SLOT_KIND_LOGITS)
    for program in extended.manifest.programs:
        for slot in (each for each in (*program.inputs, *program.outputs) if each.kind in by_row):
            slot.shape[0] = batch
    extended.hyper(extended.step, "lr_extractor", rate)
    extended.hyper(extended.step, "alpha", 0.0)
    extended.refer(extended.step, "global", TRAINED)
    extended.refer(extended.step, "dual", TRAINED, optional=True)
    return extended.bundle()


def test_a_control_variate_is_the_mean_gradient_of_the_round() -> None:
    # 1 + (3 - 2) / (5 * 0.1) = 3
    found = next_control(np.array([1.0], np.float32), np.array([3.0], np.float32), np.array([2.0], np.float32), 5, 0.1)

    np.testing.assert_allclose(found, [3.0], rtol=1e-6)


def test_two_rounds_by_hand() -> None:
    method = made("scaffold", correcting(), population=2, epochs=2)
    both = (ALICE, BOB)

    state = after(method, begun(method), [update(ALICE, weights(2.0), 5)], population=both)

    # 5 photos in batches of 4 are 2 steps an epoch, 4 in all: c_A = (0 - 2) / (4 * 0.1) = -5; c = -5 / 2.
    assert state.shared["global"]["fc.bias"][0] == 2.0
    np.testing.assert_allclose(state.clients[ALICE]["control"]["fc.bias"], -5.0)
    np.testing.assert_allclose(state.clients[ALICE]["control"]["conv.weight"], -1.0)  # / (4 * 0.5)
    of_alice, of_bob = (method.download(method.phases[0], state, client) or {} for client in (ALICE, BOB))
    np.testing.assert_allclose(of_alice["control"]["fc.bias"], -2.5)  # c_A - c
    np.testing.assert_allclose(of_bob["control"]["fc.bias"], 2.5)  # 0 - c

    state = after(method, state, [update(BOB, weights(3.0), 4)], population=both)

    # 2 steps: c_B = 2.5 + (2 - 3) / (2 * 0.1) = -2.5; the sum is -5 - 2.5.
    np.testing.assert_allclose(state.clients[BOB]["control"]["fc.bias"], -2.5)
    np.testing.assert_allclose(state.shared["controls"]["fc.bias"], -7.5)


def test_the_first_round_has_no_correction_and_evaluators_never_get_one() -> None:
    method = made("scaffold", correcting())
    state = begun(method)
    assert sorted(method.download(method.phases[0], state, ALICE) or {}) == ["global"]

    state = after(method, state, [update(ALICE, weights(1.0))])

    assert sorted(method.download(method.phases[0], state, None) or {}) == ["global"]


def test_a_forgotten_clients_control_variate_leaves_the_mean() -> None:
    method = made("scaffold", correcting())
    state = after(method, begun(method), [update(ALICE, weights(1.0)), update(BOB, weights(1.0))])
    without_bob = State(shared=state.shared, clients={ALICE: state.clients[ALICE]})

    found = method.download(method.phases[0], without_bob, CAROL) or {}

    # 1 step at 0.1: c_A = -10; there are three clients.
    np.testing.assert_allclose(found["control"]["fc.bias"], 10 / 3, rtol=1e-6)


def test_clients_that_take_part_no_more_stay_in_the_mean_beside_those_that_have_not_taken_part_yet() -> None:
    method = made("scaffold", correcting())

    state = after(method, begun(method), [update(ALICE, weights(1.0))], population=(BOB, CAROL))

    # 1 step at 0.1: c_A = -10; there are three clients.
    found = method.download(method.phases[0], state, BOB) or {}
    np.testing.assert_allclose(found["control"]["fc.bias"], 10 / 3, rtol=1e-6)


def test_the_sum_over_many_clients_is_rounded_once() -> None:
    method = made("scaffold", correcting(), population=100)
    updates = [update(client, weights(-0.1 * (1 + 1e-7 * k))) for k, client in enumerate(client_ids(100))]

    state = after(method, begun(method), updates, population=client_ids(100))

    controls = [own["control"]["fc.bias"].astype(np.float64) for own in state.clients.values()]
    np.testing.assert_array_equal(state.shared["controls"]["fc.bias"], np.float32(np.sum(controls, axis=0)))


def test_the_server_can_go_part_of_the_way() -> None:
    method = made("scaffold", correcting(), options={"server_rate": 0.5})

    state = after(method, begun(method), [update(ALICE, weights(1.0), 9), update(BOB, weights(3.0), 1)])

    assert state.shared["global"]["fc.bias"][0] == 1.0  # half of the plain mean, 2
    assert state.shared["global"]["bn.mean"][0] == 2.0
    with pytest.raises(NothingToAggregate):
        after(method, state, [update(CAROL, weights(1.0), 0)])


def test_the_order_of_arrival_changes_no_bit() -> None:
    method = made("scaffold", correcting())
    updates = [update(client, weights(0.1 * k), k) for k, client in enumerate((ALICE, BOB, CAROL), 1)]

    one, two = (after(method, begun(method), found) for found in (updates, updates[::-1]))

    np.testing.assert_array_equal(one.shared["controls"]["fc.bias"], two.shared["controls"]["fc.bias"])
    np.testing.assert_array_equal(one.shared["global"]["fc.bias"], two.shared["global"]["fc.bias"])


def test_the_plan_has_no_pull_and_no_momentum() -> None:
    method = made("scaffold", correcting(), hyper={"alpha": 0.5})

    check_plans(method, correcting())
    training = method.phases[0].plan.instructions[1].train
    assert {each.name: each.value for each in training.hyper_values} == {"alpha": 0.0, "momentum": 0.0}


@pytest.mark.parametrize(
    ("bundle", "settings", "message"),
    [
        (network(), {}, "must be dynamic for scaffold"),
        (correcting("adam"), {}, "optimiser: found 'adam', must be 'sgd' for scaffold"),
        (correcting(), {"hyper": {"momentum": 0.9}}, "hyper.momentum: found 0.9, must be 0 for scaffold"),
        (correcting(), {"hyper": {"lr_classifier": 0.0}}, "hyper.lr_classifier: found 0.0, must be above 0"),
        (correcting(), {"options": {"server_rate": 0}}, "options.server_rate: found 0, must be a number, 1e-06 to 10"),
    ],
)
def test_what_does_not_fit_is_refused(bundle: TinyBundle, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        made("scaffold", bundle, **settings)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (correcting("adam"), r"manifests\[1\].optimiser: found 'adam', must be 'sgd' for scaffold"),
        (correcting(batch=8), r"manifests\[1\].batch: found 8, must be 4, the first bundle's for scaffold"),
        (correcting(rate=0.25), r"manifests\[1\].hyper_parameters: found other .*, must be the first bundle's for"),
    ],
)
def test_bundles_that_train_otherwise_than_the_first_are_refused(second: TinyBundle, message: str) -> None:
    made("scaffold", correcting(), correcting())
    with pytest.raises(SettingsError, match=message):
        made("scaffold", correcting(), second)
