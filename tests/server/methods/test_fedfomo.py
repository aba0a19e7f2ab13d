from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedlens_server.methods.fedfomo import preferred, with_gains
from fedlens_server.planning.method import Method, NothingToAggregate, State, Update
from fedlens_server.planning.task_settings import SettingsError
from tests.server.fakes import ALICE, BOB, CAROL, DAVE, EVE
from tests.server.methods.programs import check_plans, comparing
from tests.server.methods.tasks import after, begun, changed, made
from tests.server.networks import network, weights

EVERYBODY = (ALICE, BOB, CAROL, DAVE)
SHARED = {"share_models": True}


def method_of(candidates: int = 2, **options: Any) -> Method:
    return made("fedfomo", comparing(candidates), options={**SHARED, **options})


def answer(client: bytes, value: float, gains: Sequence[float] = (0.0, 0.0), photos: int = 4) -> Update:
    values = {"weights": weights(value), "gain": {"score": np.array(gains, np.float32)}}
    return Update(client=client, num_examples=photos, values=values)


def round_of(method: Method, state: State, *updates: Update, **given: Any) -> State:
    return after(method, state, updates, **{"population": EVERYBODY, **given})


def got(method: Method, state: State, client: bytes) -> dict[str, float]:
    """The bias of each model that a client is sent: whose it is."""
    sent: Mapping[str, Any] = method.download(method.phases[0], state, client) or {}
    return {name: float(model["fc.bias"][0]) for name, model in sorted(sent.items())}


def test_those_with_the_greatest_preferences_are_chosen_and_of_equal_ones_the_first() -> None:
    assert preferred(np.array([0.0, 2.0, 3.0, 2.0]), [0, 1, 2, 3], 2) == [2, 1]
    assert preferred(np.array([-1.0, -2.0]), [1, 0], 5) == [0, 1]
    assert preferred(np.zeros(3), [], 2) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_gains_add_up_and_one_that_is_not_finite_counts_nothing(bad: float) -> None:
    found = with_gains(np.eye(4), 1, [3, -1, 0], np.array([0.5, 7.0, bad]))

    np.testing.assert_array_equal(found[1], [0.0, 1.0, 0.0, 0.5])
    np.testing.assert_array_equal(found[[0, 2, 3]], np.eye(4)[[0, 2, 3]])


@pytest.mark.parametrize("gain", [3e38, -3e38])
def test_no_gain_that_a_client_claims_makes_a_preference_infinite(gain: float) -> None:
    found = np.eye(2)
    for _ in range(3):
        found = with_gains(found, 0, [1], np.array([gain], np.float32))

    assert found.astype(np.float32)[0, 1] == np.float32(np.copysign(1e30, gain))


def test_the_first_round_is_with_the_own_model_alone() -> None:
    method = method_of()

    assert got(method, begun(method), ALICE) == {}


def test_then_each_gets_models_of_others_of_the_last_round_and_never_its_own() -> None:
    method = method_of()

    state = round_of(method, begun(method), answer(ALICE, 1.0), answer(BOB, 2.0), answer(CAROL, 3.0))

    # Nobody is preferred yet, so the lowest ids come first. Dave has been in no round.
    assert got(method, state, ALICE) == {"other-0": 2.0, "other-1": 3.0}
    assert got(method, state, BOB) == {"other-0": 1.0, "other-1": 3.0}
    assert got(method, state, DAVE) == {"other-0": 1.0, "other-1": 2.0}
    assert got(method, round_of(method, state, answer(BOB, 5.0)), BOB) == {}
    assert method.download(method.phases[0], state, None) is None


def test_gains_are_for_those_whose_model_the_slot_held_also_after_somebody_was_forgotten() -> None:
    method = method_of(3)
    everybody = [answer(client, 1.0 + k, [0.0] * 3) for k, client in enumerate(EVERYBODY)]
    state = round_of(method, begun(method), *everybody)
    assert got(method, state, ALICE) == {"other-0": 2.0, "other-1": 3.0, "other-2": 4.0}
    without_bob = replace(state, clients={c: own for c, own in state.clients.items() if c != BOB})
    assert got(method, without_bob, ALICE) == {"other-1": 3.0, "other-2": 4.0}

    # Slots 1 and 2 held Carol's and Dave's models; the gain of Bob's is nobody's.
    gains = [5.0, -1.0, 2.0]
    later = round_of(method, without_bob, answer(ALICE, 1.5, gains), *everybody[2:], population=(ALICE, CAROL, DAVE))

    assert got(method, later, ALICE) == {"other-0": 4.0, "other-1": 3.0}
    row = later.clients[ALICE]["slot"]
    np.testing.assert_array_equal(later.shared["preferences"][row, later.clients[CAROL]["slot"]], -1.0)
    bob_row = state.clients[BOB]["slot"]
    joined = round_of(method, later, *everybody[2:], population=(ALICE, CAROL, DAVE, EVE))
    assert joined.clients[EVE]["slot"] == bob_row
    np.testing.assert_array_equal(joined.shared["preferences"][:, bob_row], np.eye(4)[bob_row])


def test_who_enrols_after_the_last_round_gets_its_first_models_and_gains_of_them_count() -> None:
    method = method_of()
    state = round_of(method, begun(method), answer(ALICE, 1.0), answer(BOB, 2.0), answer(CAROL, 3.0))
    assert got(method, state, EVE) == {"other-0": 1.0, "other-1": 2.0}
    without_bob = replace(state, clients={c: own for c, own in state.clients.items() if c != BOB})
    assert got(method, without_bob, EVE) == {"other-0": 1.0}

    later = round_of(method, without_bob, answer(EVE, 5.0, [0.5, 7.0]), population=(ALICE, CAROL, DAVE, EVE))

    # Eve takes Bob's row, the second one; slot 1 held nobody's model.
    np.testing.assert_array_equal(later.shared["preferences"][later.clients[EVE]["slot"]], [0.5, 1.0, 0.0, 0.0])


def test_only_models_of_the_last_round_are_kept() -> None:
    method = method_of()
    state = round_of(method, begun(method), answer(ALICE, 1.0), answer(BOB, 2.0))

    state = round_of(method, state, answer(BOB, 4.0), answer(CAROL, 6.0, photos=0))

    assert {client for client, own in state.clients.items() if "model" in own} == {BOB}
    with pytest.raises(NothingToAggregate):
        round_of(method, state, answer(CAROL, 6.0, photos=0))


def test_the_order_of_arrival_changes_nothing() -> None:
    method = method_of(random=0.5)
    first = [answer(client, float(k)) for k, client in enumerate(EVERYBODY)]
    second = [answer(client, float(k), [0.1 * k, 0.2]) for k, client in enumerate(EVERYBODY)]

    def both(flip: int) -> State:
        state = round_of(method, begun(method), *first[::flip])
        return round_of(method, state, *second[::flip], generator=np.random.default_rng(3))

    one, other = both(1), both(-1)

    for name in ("preferences", "others"):
        np.testing.assert_array_equal(one.shared[name], other.shared[name])


def test_random_choices_become_rarer_by_a_twentieth_a_round() -> None:
    method = method_of(1, random=0.05)
    preferring = answer(ALICE, 1.0, [9.0])

    class Lowest:
        """A generator that would always choose at random, and then the last one."""

        def random(self) -> float:
            return 0.0

        def permutation(self, candidates: Sequence[int]) -> np.ndarray[Any, Any]:
            return np.array(candidates[::-1])

    others = [answer(BOB, 2.0, [0.0]), answer(CAROL, 3.0, [0.0])]
    state = round_of(method, begun(method), preferring, *others, generator=Lowest())
    assert got(method, state, ALICE) == {"other-0": 3.0}
    state = round_of(method, state, preferring, *others, generator=Lowest())
    assert got(method, state, ALICE) == {"other-0": 3.0}  # 0.05 - 0.05: by preference, 9 for Carol
    assert got(method, state, BOB) == {"other-0": 1.0}


def test_the_plan_compares_on_photos_that_never_train_and_starts_from_the_sum() -> None:
    bundle = comparing(3)
    method = made("fedfomo", bundle, options={**SHARED, "others": 2, "validation_percent": 30})

    check_plans(method, bundle)
    (phase,) = method.phases
    assert phase.plan.validation_percent == 30
    bound = {each.reference: each.source.download for each in phase.plan.instructions[1].derive.bindings}
    assert bound == {"base": "", "candidate-0": "other-0", "candidate-1": "other-1"}
    assert [(each.source.state, each.source.download) for each in phase.model_rules] == [("model", "initial")]
    assert [each.name for each in phase.plan.uploads] == ["weights", "gain"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"options.share_models: found false, must be true for fedfomo, which gives each client's model to other"),
        ({"options": {**SHARED, "others": 3}}, r"options.others: found 3, must be at most 2, .* with --candidates 3"),
        ({"options": SHARED, "difference": True}, r"difference: found true, must be false for fedfomo"),
        ({"options": {**SHARED, "validation_percent": 51}}, r"validation_percent: found 51"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        made("fedfomo", comparing(), **settings)


def test_bundles_without_candidates_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"a bundle without program 'compare', must be .* with --candidates K"):
        made("fedfomo", network(), options=SHARED)
    with pytest.raises(SettingsError, match=r"program 'blend'"):
        made("fedfomo", changed(comparing(), programs=list(comparing().parsed.programs)[:4]), options=SHARED)
