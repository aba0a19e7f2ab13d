from typing import Any

import numpy as np
import pytest

from fedlens_server.methods.fesem import FeSEM, balanced
from fedlens_server.planning.method import NothingToAggregate, Phase, State, Update
from fedlens_server.planning.task_settings import SettingsError
from tests.server.fakes import ALICE, BOB, CAROL, DAVE
from tests.server.methods.golden import Case, cases
from tests.server.methods.programs import check_plans
from tests.server.methods.tasks import PROXIMAL, after, begun, made, tools, update
from tests.server.networks import network, weights

IDS = [bytes([k]) * 32 for k in range(64)]


def rounds(case: Case, variant: str) -> list[State]:
    """The state after each round of a worked case."""
    centres, counts = case.inputs["centres"].astype(np.float32), case.inputs["n"]
    method = FeSEM(clusters=len(centres), variant=variant)
    first = {IDS[k]: {"cluster": int(place)} for k, place in enumerate(case.inputs["first_assignment"])}
    state = State(shared={f"centre-{k}": {"w": each} for k, each in enumerate(centres)}, clients=first)
    found = []
    phase: Any = Phase(name="train", rounds=1, cohort=None, plan=made("fesem", PROXIMAL).phases[0].plan)
    for models, present in zip(case.inputs["updates"], case.inputs["participants"], strict=True):
        updates = [
            Update(client=IDS[k], num_examples=int(counts[k]), values={"weights": {"w": models[k].astype(np.float32)}})
            for k in np.flatnonzero(present)
        ]
        state = method.aggregate(phase, state, updates, tools())
        found.append(state)
    return found


def test_the_worked_cases() -> None:
    for case in cases("fesem"):
        for variant, prefix in (("reference", ""), ("paper", "paper_order_")):
            for number, state in enumerate(rounds(case, variant)):
                places = np.array([state.clients[IDS[k]]["cluster"] for k in range(len(case.inputs["n"]))])
                centres = np.array([state.shared[f"centre-{k}"]["w"] for k in range(len(case.inputs["centres"]))])
                for name, value in (("centres", centres), ("assignment", places)):
                    if f"{prefix}{name}_{number}" in case.outputs:
                        case.check(f"{prefix}{name}_{number}", value)


def placed(**places: int) -> State:
    clients = {"alice": ALICE, "bob": BOB, "carol": CAROL, "dave": DAVE}
    return State(
        shared={f"centre-{k}": weights(10.0 * k) for k in range(2)},
        clients={clients[name]: {"cluster": place} for name, place in places.items()},
    )


def test_the_first_assignment_is_balanced_and_all_centres_begin_as_the_initial_model() -> None:
    found = balanced(IDS[:7], 3, np.random.default_rng(0))
    assert sorted(np.bincount(list(found.values()))) == [2, 2, 3]
    assert found != {client: k % 3 for k, client in enumerate(IDS[:7])}
    method = made("fesem", PROXIMAL, options={"clusters": 2})

    state = begun(method, 3.0)

    assert state.shared["centre-0"] is state.shared["centre-1"]
    assert sorted(own["cluster"] for own in state.clients.values()) == [0, 0, 1]


def test_a_centre_is_the_mean_of_those_that_trained_it_and_then_clients_move_to_the_nearest() -> None:
    method = made("fesem", PROXIMAL, options={"clusters": 2})
    updates = [update(ALICE, weights(0.0), 3), update(BOB, weights(8.0), 1), update(CAROL, weights(10.0), 2)]

    state = after(method, placed(alice=0, bob=0, carol=1, dave=0), updates)

    # centre 0: (3 * 0 + 1 * 8) / 4 = 2, centre 1: 10; Bob's 8 is nearer to 10. Dave never uploaded.
    assert [state.shared[f"centre-{k}"]["fc.bias"][0] for k in range(2)] == [2.0, 10.0]
    assert [state.clients[each]["cluster"] for each in (ALICE, BOB, CAROL, DAVE)] == [0, 1, 1, 0]


def test_a_centre_that_nobody_trained_stays_and_a_tie_goes_to_the_lowest() -> None:
    method = made("fesem", PROXIMAL, options={"clusters": 2})

    state = after(method, placed(alice=1), [update(ALICE, weights(4.0))])

    assert [state.shared[f"centre-{k}"]["fc.bias"][0] for k in range(2)] == [0.0, 4.0]
    one = begun(method)
    tied = after(method, State(shared=one.shared, clients={BOB: {"cluster": 1}}), [update(BOB, weights(0.0))])
    assert tied.clients[BOB]["cluster"] == 0


def test_uploads_of_earlier_rounds_move_with_the_centres_and_forgotten_ones_do_not_count() -> None:
    method = made("fesem", PROXIMAL, options={"clusters": 2})
    state = after(method, placed(alice=0, carol=1), [update(ALICE, weights(4.0)), update(CAROL, weights(10.0))])
    assert state.clients[ALICE]["cluster"] == 0

    state = after(method, state, [update(CAROL, weights(5.0))])
    assert [state.clients[each]["cluster"] for each in (ALICE, CAROL)] == [0, 1]
    state = State(shared=state.shared, clients={ALICE: state.clients[ALICE]})
    later = after(method, state, [update(ALICE, weights(-90.0))])
    assert list(later.clients) == [ALICE]


def test_new_clients_are_spread_by_their_ids() -> None:
    method = made("fesem", PROXIMAL, options={"clusters": 2})
    state = placed(alice=0, bob=0, carol=0)

    found = [(method.download(method.phases[0], state, IDS[k]) or {})["centre"] for k in range(4)]

    # Bytes that are all k are an odd number exactly if k is odd.
    assert [each["fc.bias"][0] for each in found] == [0.0, 10.0, 0.0, 10.0]
    assert method.download(method.phases[0], state, None) is None


def test_a_new_clients_model_counts_for_the_centre_that_it_trained_though_others_were_forgotten_meanwhile() -> None:
    method = made("fesem", PROXIMAL, options={"clusters": 2})
    state, new = placed(alice=0, bob=0, carol=1), IDS[1]
    assert (method.download(method.phases[0], state, new) or {})["centre"] is state.shared["centre-1"]

    without_alice_and_bob = State(shared=state.shared, clients={CAROL: state.clients[CAROL]})
    later = after(method, without_alice_and_bob, [update(new, weights(12.0))])

    assert [later.shared[f"centre-{k}"]["fc.bias"][0] for k in range(2)] == [0.0, 12.0]


def test_one_cluster_is_fedavg_and_the_order_of_arrival_changes_no_bit() -> None:
    updates = [update(client, weights(0.1 * k), k) for k, client in enumerate((ALICE, BOB, CAROL), 1)]
    method, average = made("fesem", PROXIMAL, options={"clusters": 1}), made("fedavg", PROXIMAL)

    one, two = (after(method, begun(method), found) for found in (updates, updates[::-1]))
    expected = after(average, begun(average), updates)

    for name, tensor in expected.shared["global"].items():
        np.testing.assert_array_equal(one.shared["centre-0"][name], tensor)
        np.testing.assert_array_equal(two.shared["centre-0"][name], tensor)
    with pytest.raises(NothingToAggregate):
        after(method, one, [update(ALICE, weights(1.0), 0)])


def test_the_plan_fits_and_another_objective_is_refused() -> None:
    check_plans(made("fesem", PROXIMAL), PROXIMAL)
    with pytest.raises(SettingsError, match="must be proximal for fesem"):
        made("fesem", network())
