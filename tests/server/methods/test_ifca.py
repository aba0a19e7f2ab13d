from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedlens_server.methods.arithmetic.centres import mean_set, nearest, permuted
from fedlens_server.methods.ifca import chosen_centre, gradient_step
from fedlens_server.planning.method import NothingToAggregate, State, Update
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import TinyBundle
from tests.server.fakes import ALICE, BOB, CAROL
from tests.server.methods.centres import choosing
from tests.server.methods.golden import cases
from tests.server.methods.programs import check_plans
from tests.server.methods.tasks import PROXIMAL, after, begun, made, tools
from tests.server.networks import network, weights


def answer(client: bytes, value: float, centre: int, photos: int = 1) -> Update:
    values = {"weights": weights(value), "choice": {"score": np.eye(2, dtype=np.float32)[centre]}}
    return Update(client=client, num_examples=photos, values=values)


def biases(state: State) -> list[float]:
    return [float(state.shared[f"centre-{k}"]["fc.bias"][0]) for k in range(2)]


def test_the_worked_cases() -> None:
    for case in cases("ifca"):
        if "centres" not in case.outputs or "weight" not in case.inputs:
            continue
        models, counts, chosen = case.inputs["weight"], case.inputs["n"], case.outputs["assignment"]
        found = []
        for k, centre in enumerate(case.inputs["centres"]):
            members = [{"w": models[i]} for i in np.flatnonzero(chosen == k)]
            found.append(mean_set(members, counts[chosen == k].tolist(), {"w": centre})["w"])
        case.check("centres", np.array(found))
        case.check("assignment", np.array([nearest(losses) for losses in case.inputs["losses"]]))


def test_centres_begin_different_and_the_first_as_the_initial_model() -> None:
    initial = {"a": np.arange(60, dtype=np.float32).reshape(6, 10), "b": np.arange(5, dtype=np.float32)}

    found = permuted(initial, 3, np.random.default_rng(1))

    assert found["centre-0"] is initial
    assert not np.array_equal(found["centre-1"]["a"], initial["a"])
    assert not np.array_equal(found["centre-1"]["a"], found["centre-2"]["a"])
    np.testing.assert_array_equal(np.sort(found["centre-2"]["a"].ravel()), initial["a"].ravel())
    np.testing.assert_array_equal(found["centre-1"]["b"], initial["b"])
    again = permuted(initial, 3, np.random.default_rng(1))
    np.testing.assert_array_equal(again["centre-2"]["a"], found["centre-2"]["a"])


@pytest.mark.parametrize(
    ("distances", "expected"), [([2.0, 1.0, 1.0], 1), ([np.nan, 3.0], 1), ([np.inf, np.inf], 0), ([0.0, np.nan], 0)]
)
def test_the_least_is_chosen_with_ties_to_the_lowest_and_never_what_is_not_finite(
    distances: Sequence[float], expected: int
) -> None:
    assert nearest(distances) == expected


def test_each_centre_is_the_mean_of_those_that_chose_it_by_their_photos() -> None:
    method = made("ifca", choosing())
    state = begun(method, 7.0)

    state = after(method, state, [answer(ALICE, 1.0, 1, 1), answer(BOB, 3.0, 1, 3), answer(CAROL, 9.0, 0, 0)])

    assert biases(state) == [7.0, 2.5]  # (1 * 1 + 3 * 3) / 4; centre 0 has only a client without photos
    assert state.shared["centre-1"]["bn.batches"] == 3
    assert chosen_centre(np.array([0, 1], np.float32)) == 1
    with pytest.raises(NothingToAggregate):
        after(method, state, [answer(CAROL, 9.0, 0, 0)])


def test_gradients_are_divided_by_all_clients_of_the_round() -> None:
    five, four, two = (np.array([value], np.float32) for value in (5.0, 4.0, 2.0))
    np.testing.assert_array_equal(gradient_step(five, [four, two], [five, five], 2.0, 4), 3.0)  # 5 - 2 / 4 * (1 + 3)
    method = made("ifca", choosing(), options={"averaging": "gradients", "server_rate": 0.5})

    state = after(method, begun(method, 1.0), [answer(ALICE, 3.0, 0), answer(BOB, 7.0, 1)])

    assert biases(state) == [1.5, 2.5]  # 1 + 0.5 / 2 * (3 - 1); 1 + 0.5 / 2 * (7 - 1)


def test_a_gradient_is_from_what_the_client_was_sent_so_that_rounding_on_the_way_moves_no_centre() -> None:
    method = made("ifca", choosing(), options={"averaging": "gradients", "server_rate": 100})
    (phase,), state = method.phases, begun(method, 0.1)  # as float16 0.09998
    sent = {
        name: {key: tensor.astype(np.float16).astype(tensor.dtype) for key, tensor in model.items()}
        for name, model in (method.download(phase, state, ALICE) or {}).items()
    }
    untrained = answer(ALICE, 0.0, 1)
    unchanged = replace(untrained, sent=sent, values={**untrained.values, "weights": sent["centre-1"]})

    found = method.aggregate(phase, state, [unchanged], tools())

    for name, tensor in state.shared["centre-1"].items():
        np.testing.assert_array_equal(found.shared["centre-1"][name], tensor)


def test_gradients_are_summed_without_rounding_in_between() -> None:
    method = made("ifca", choosing(), options={"averaging": "gradients", "server_rate": 1000})
    start = np.float32(0.1)

    state = after(method, begun(method, float(start)), [answer(ALICE, float(np.nextafter(start, np.float32(1))), 0)])

    # From 1/16 to 1/8 floats are 2^-27 apart, so this is the 1000th after 0.1.
    assert biases(state)[0] == float(start) + 1000 * 2**-27


def test_a_shared_extractor_is_the_mean_over_all() -> None:
    method = made("ifca", choosing(), options={"share_extractor": True})

    state = after(method, begun(method), [answer(ALICE, 1.0, 0), answer(BOB, 3.0, 1)])

    assert biases(state) == [1.0, 3.0]
    assert [float(state.shared[f"centre-{k}"]["conv.weight"][0, 0]) for k in range(2)] == [2.0, 2.0]


def test_the_order_of_arrival_changes_no_bit() -> None:
    method = made("ifca", choosing())
    updates = [answer(client, 0.1 * k, 0, k) for k, client in enumerate((ALICE, BOB, CAROL), 1)]

    one, other = (after(method, begun(method), found) for found in (updates, updates[::-1]))

    np.testing.assert_array_equal(one.shared["centre-0"]["conv.weight"], other.shared["centre-0"]["conv.weight"])


def test_all_centres_are_downloaded_and_there_is_no_global_model() -> None:
    method = made("ifca", choosing(3), options={"clusters": 2})
    check_plans(method, choosing(3))
    state = begun(method)

    assert sorted(method.download(method.phases[0], state, ALICE) or {}) == ["centre-0", "centre-1"]
    assert method.download(method.phases[0], state, None) is None
    (rule,) = method.phases[0].model_rules
    assert (rule.source.state, rule.source.download) == ("model", "centre-0")


@pytest.mark.parametrize(
    ("bundle", "settings", "message"),
    [
        (network(), {}, r"without program 'compare', must be .* with --candidates K"),
        (choosing(), {"options": {"clusters": 3}}, r"clusters: found 3, must be at most 2, .* --candidates 3"),
        (choosing(), {"options": {"server_rate": 0.5}}, r'server_rate: found 0.5, must be left out, since .* "models"'),
        (choosing(), {"options": {"server_rate": 0}}, "server_rate: found 0, must be a number, 1e-06 to 1000"),
        (choosing(), {"difference": True}, "difference: found true, must be false for ifca"),
        (PROXIMAL, {}, "wants reference 'global'"),
    ],
)
def test_what_does_not_fit_is_refused(bundle: TinyBundle, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        made("ifca", bundle, **settings)
