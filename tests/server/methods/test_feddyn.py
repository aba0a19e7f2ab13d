from typing import Any

import numpy as np
import pytest

from fedlens_server.methods.feddyn import corrected, next_dual, with_changes
from fedlens_server.planning.method import NothingToAggregate, State
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import TinyBundle
from tests.server.fakes import ALICE, BOB, CAROL
from tests.server.methods.golden import cases
from tests.server.methods.programs import Extended, check_plans
from tests.server.methods.tasks import after, begun, made, update
from tests.server.networks import network, weights

TRAINED = {"bn.weight": (2,), "conv.weight": (2, 3), "fc.bias": (2,), "fc.weight": (2, 2)}


def dynamic(alpha: float = 0.5) -> TinyBundle:
    """With objective `dynamic` and the program for duals on the clients."""
    extended = Extended("dynamic")
    extended.hyper(extended.step, "alpha", alpha)
    extended.refer(extended.step, "global", TRAINED)
    extended.refer(extended.step, "dual", TRAINED, optional=True)
    dual = extended.derives("dual_update", "dual", TRAINED)
    extended.hyper(dual, "alpha", alpha)
    for reference in ("start", "trained"):
        extended.refer(dual, reference, TRAINED)
    extended.refer(dual, "dual", TRAINED, optional=True)
    return extended.bundle()


def test_the_worked_cases() -> None:
    for case in cases("feddyn"):
        theta, alpha = case.inputs["theta"].astype(np.float32), float(case.inputs["alpha"])
        m = int(case.inputs["m"])
        duals, own = np.zeros_like(theta), np.zeros((m, *theta.shape), np.float32)
        for number, (models, present) in enumerate(
            zip(case.inputs["updates"], case.inputs["participants"], strict=True)
        ):
            members = np.flatnonzero(present)
            taken = [models[k].astype(np.float32) for k in members]
            for k in members:
                own[k] = next_dual(own[k], models[k].astype(np.float32), theta, alpha)
            duals = with_changes(duals, taken, [theta] * len(taken), alpha)
            mean = np.asarray(np.mean(taken, axis=0, dtype=np.float64), np.float32)
            theta = corrected(mean, duals, m, alpha)
            case.check(f"theta_{number}", theta)
            case.check(f"h_{number}", duals / m)
        case.check("dual_after_last", own)


def test_of_two_clients_one_takes_part_and_the_server_overshoots_by_its_share() -> None:
    method = made("feddyn", dynamic(), population=2)

    state = after(method, begun(method), [update(ALICE, weights(2.0))], population=(ALICE, BOB))

    # H = -0.5 * (2 - 0) = -1, h = H / 2 = -0.5; w = 2 - -0.5 / 0.5 = 3. BatchNorm's mean is the plain one.
    assert state.shared["global"]["fc.bias"][0] == 3.0
    assert state.shared["global"]["bn.mean"][0] == 2.0
    assert state.shared["global"]["bn.batches"] == 2
    assert state.clients[ALICE]["dual"]["fc.bias"][0] == -1.0
    assert "bn.mean" not in state.clients[ALICE]["dual"]


def test_clients_that_take_part_no_more_stay_in_the_mean_of_the_duals() -> None:
    method = made("feddyn", dynamic())
    state = after(method, begun(method), [update(client, weights(0.0)) for client in (ALICE, BOB, CAROL)])

    state = after(method, state, [update(ALICE, weights(3.0))], population=(ALICE,))

    # H = -0.5 * 3 of three clients: 3 - -1.5 / (3 * 0.5) = 4.
    assert state.shared["global"]["fc.bias"][0] == 4.0


def test_a_client_gets_its_own_dual_and_one_that_is_new_none() -> None:
    method = made("feddyn", dynamic())
    state = after(method, begun(method), [update(ALICE, weights(2.0)), update(BOB, weights(4.0))])

    phase = method.phases[0]

    assert (method.download(phase, state, ALICE) or {})["dual"]["fc.bias"][0] == -1.0
    assert (method.download(phase, state, BOB) or {})["dual"]["fc.bias"][0] == -2.0
    assert sorted(method.download(phase, state, CAROL) or {}) == ["global"]
    assert sorted(method.download(phase, state, None) or {}) == ["global"]


def test_the_mean_is_plain_and_a_client_without_photos_is_in_nothing() -> None:
    method = made("feddyn", dynamic())
    updates = [update(ALICE, weights(1.0), 99), update(BOB, weights(3.0), 1), update(CAROL, weights(50.0), 0)]

    state = after(method, begun(method), updates)

    # mean 2; H = -0.5 * (1 + 3) = -2, h = -2 / 3; w = 2 + (2 / 3) / 0.5 = 10 / 3
    np.testing.assert_allclose(state.shared["global"]["fc.bias"], 10 / 3, rtol=1e-6)
    assert CAROL not in state.clients
    with pytest.raises(NothingToAggregate):
        after(method, state, [update(CAROL, weights(1.0), 0)])


def test_a_forgotten_clients_dual_leaves_the_sum() -> None:
    method = made("feddyn", dynamic())
    state = after(method, begun(method), [update(ALICE, weights(2.0)), update(BOB, weights(4.0))])
    without_bob = State(shared=state.shared, clients={ALICE: state.clients[ALICE]})

    still = weights(float(state.shared["global"]["fc.bias"][0]))
    later = after(method, without_bob, [update(ALICE, still)], population=(ALICE, CAROL))

    # Alice has not moved, so H is her dual alone, -0.5 * 2.
    np.testing.assert_allclose(later.shared["duals"]["fc.bias"], -1.0)


@pytest.mark.parametrize("dual", ["server", "client"])
def test_the_order_of_arrival_and_where_the_dual_is_change_no_bit(dual: str) -> None:
    server = made("feddyn", dynamic(0.3))
    other = made("feddyn", dynamic(0.3), options={"dual": dual})
    updates = [update(client, weights(0.1 * k)) for k, client in enumerate((ALICE, BOB, CAROL), 1)]

    one, two = begun(server), begun(other)
    for _ in range(2):
        one, two = after(server, one, updates), after(other, two, updates[::-1])

    for name, tensor in one.shared["global"].items():
        np.testing.assert_array_equal(two.shared["global"][name], tensor)
    assert bool(two.clients) == (dual == "server")


def test_clients_can_carry_out_both_plans() -> None:
    for dual in ("server", "client"):
        check_plans(made("feddyn", dynamic(), options={"dual": dual}), dynamic())


def test_clients_of_every_bundle_train_with_the_alpha_that_the_server_computes_with() -> None:
    method = made("feddyn", dynamic(0.5), dynamic(0.25), options={"dual": "client"})

    check_plans(method, dynamic(0.25))
    _, step, dual = method.phases[0].plan.instructions
    for values in (step.train.hyper_values, dual.derive.hyper_values):
        assert {each.name: each.value for each in values} == {"alpha": 0.5}


@pytest.mark.parametrize(
    ("bundle", "settings", "message"),
    [
        (network(), {}, "found 'cross_entropy', must be dynamic for feddyn"),
        (dynamic(0.0), {}, "hyper.alpha: found 0, must be above 0"),
        (dynamic(), {"options": {"dual": "both"}}, "options.dual: found 'both'"),
    ],
)
def test_what_does_not_fit_is_refused(bundle: TinyBundle, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        made("feddyn", bundle, **settings)
