from math import exp, log
from typing import Any

import numpy as np
import pytest

from fedlens_server.methods.fedgen import (
    Classifiers,
    Weights,
    adam,
    folded,
    forward,
    fresh,
    generator_loss,
    label_weights,
    qualified,
)
from fedlens_server.planning.method import GLOBAL, State, Update
from fedlens_server.planning.task_settings import SettingsError
from tests.server.fakes import ALICE, BOB, CAROL
from tests.server.methods.golden import cases
from tests.server.methods.programs import CLASSES, GENERATOR, HIDDEN, NOISE, WIDTH, check_plans, generating
from tests.server.methods.tasks import after, begun, changed, made, update
from tests.server.networks import network, weights

BUNDLE = generating()
EQUAL = Classifiers(np.zeros((1, 2, 3)), np.zeros((1, 2)))
TRAINED = ("hidden.weight", "hidden.bias", "norm.weight", "norm.bias", "output.weight", "output.bias")


def drawn(seed: int = 1, rows: int = 6) -> tuple[Weights, Any, Any]:
    """A generator, noise and labels."""
    random = np.random.default_rng(seed)
    made = fresh(random, CLASSES, NOISE, HIDDEN, WIDTH)
    made["norm.weight"], made["norm.bias"] = random.random(HIDDEN) + 0.5, random.random(HIDDEN)
    return made, random.random((rows, NOISE)), random.integers(0, CLASSES, rows)


def test_losses_and_their_gradient_equal_the_worked_cases() -> None:
    for case in cases("fedgen"):
        given = case.inputs
        shares = label_weights(given["class_counts"])
        classifiers = Classifiers(given["classifier_weight"], given["classifier_bias"])
        alpha, eta = float(given["ensemble_alpha"]), float(given["ensemble_eta"])
        found = generator_loss(given["generated"], given["noise"], given["y"], shares, classifiers, alpha, eta)

        case.check("label_weights", shares)
        case.check("qualified", qualified(given["class_counts"]))
        case.check("teacher_loss", np.array(found.teacher))
        case.check("diversity_loss", np.array(found.diversity))
        case.check("loss", np.array(found.teacher + found.diversity))
        case.check("grad_generated", found.gradient)


def test_a_class_that_nobody_has_weighs_nothing_and_one_photo_does_not_qualify() -> None:
    counts = [[3, 1, 0], [1, 1, 0]]

    np.testing.assert_allclose(label_weights(counts), [[0.75, 0.25], [0.5, 0.5], [0.0, 0.0]])
    assert qualified(counts).tolist() == [True, False, False]


def test_a_classifier_that_tells_nothing_costs_log_of_the_classes() -> None:
    found = generator_loss(np.ones((4, 3)), np.ones((4, 2)), np.array([0, 1, 0, 1]), np.ones((2, 1)), EQUAL, 2.0, 3.0)

    assert found.teacher == pytest.approx(2 * log(2))
    assert found.diversity == 3.0  # equal rows are 0 apart: 3 exp(0)
    np.testing.assert_array_equal(found.gradient, np.zeros((4, 3)))


def test_rows_that_differ_as_their_noise_does_cost_less() -> None:
    # Of four pairs two are apart, by noise (1 + 1) / 2 and features (2 + 0 + 1) / 3: exp(-2 * 1 * 1 / 4).
    features, noise = np.array([[0.0, 0.0, 0.0], [2.0, 0.0, 1.0]]), np.array([[0.0, 0.0], [1.0, 1.0]])

    found = generator_loss(features, noise, np.array([0, 1]), np.zeros((2, 1)), EQUAL)

    assert found.diversity == pytest.approx(exp(-0.5))


def test_the_gradient_through_the_generator_is_the_slope_of_the_loss() -> None:
    generator, noise, labels = drawn()
    random = np.random.default_rng(2)
    classifiers, shares = Classifiers(random.random((3, 2, WIDTH)), random.random((3, 2))), random.random((2, 3))

    def loss(weights: Weights) -> float:
        found = generator_loss(forward(weights, noise, labels).features, noise, labels, shares, classifiers)
        return found.teacher + found.diversity

    now = forward(generator, noise, labels)
    by_features = generator_loss(now.features, noise, labels, shares, classifiers).gradient
    found = now.gradients(by_features)

    assert sorted(found) == sorted(TRAINED)
    for name, gradient in found.items():
        slopes = np.zeros(generator[name].size)
        for i in range(slopes.size):
            bump = np.zeros(slopes.size)
            bump[i] = 1e-6
            moved = [
                {**generator, name: generator[name] + sign * bump.reshape(generator[name].shape)} for sign in (1, -1)
            ]
            slopes[i] = (loss(moved[0]) - loss(moved[1])) / 2e-6
        np.testing.assert_allclose(gradient.reshape(-1), slopes, atol=1e-7, err_msg=name)


def test_two_layers_with_the_statistics_of_a_batch_generate_what_training_does() -> None:
    generator, noise, labels = drawn()
    now = forward(generator, noise, labels)
    generator |= {"norm.mean": now.entered.mean(axis=0), "norm.var": now.entered.var(axis=0)}

    layers = folded(generator)

    hidden = np.maximum(now.inputs @ layers["hidden.weight"].T + layers["hidden.bias"], 0)
    np.testing.assert_allclose(hidden @ layers["output.weight"].T + layers["output.bias"], now.features, rtol=1e-4)
    assert {name: value.shape for name, value in layers.items()} == {name: GENERATOR[name] for name in layers}


def test_running_statistics_move_by_a_tenth_and_their_variance_is_unbiased() -> None:
    generator, noise, labels = drawn(rows=2)
    now = forward(generator, noise, labels)
    first, second = now.entered

    found = now.statistics()

    np.testing.assert_allclose(found["norm.mean"], 0.1 * (first + second) / 2)
    # Two values: (a - b)^2 / 2 with divisor 1.
    np.testing.assert_allclose(found["norm.var"], 0.9 + 0.1 * (first - second) ** 2 / 2)


def test_adams_first_step_moves_each_weight_by_the_rate() -> None:
    # m = 0.1 g, v = 0.001 g^2, corrected g and g^2; the step is rate * g / |g|. The second, with gradient 0:
    # m = 0.09 * 2 / 0.19, v = 0.000999 * 4 / 0.001999; 0.5 * 0.94737 / 1.41386 = 0.33503.
    weights, moments = {"a": np.array([1.0])}, {"first/a": np.zeros(1), "second/a": np.zeros(1)}

    adam(weights, moments, {"a": np.array([2.0])}, 0.5, 1)
    np.testing.assert_allclose(weights["a"], [0.5], rtol=1e-7)
    adam(weights, moments, {"a": np.array([0.0])}, 0.5, 2)
    np.testing.assert_allclose(weights["a"], [0.5 - 0.33503], rtol=1e-4)


def answer(client: bytes, value: float, counts: tuple[int, int]) -> Update:
    fc = ((value, -value), (-value, value))
    return update(client, weights(value, fc), sum(counts), class_counts=counts)


def tables(state: State) -> dict[str, Any]:
    return dict(state.shared["generator"])


def test_the_generator_comes_with_the_second_round_and_its_weights_fall() -> None:
    method = made("fedgen", BUNDLE, options={"alpha": 2.0, "beta": 4.0})
    (phase,) = method.phases
    state = begun(method)
    assert set(method.download(phase, state, ALICE) or {}) == {GLOBAL}

    for number in (1, 2):
        state = after(method, state, [answer(ALICE, 1.0, (3, 0)), answer(BOB, 3.0, (1, 0))])
        found = tables(state)
        assert found["alpha"] == pytest.approx(2 * 0.98**number)
        assert found["beta"] == pytest.approx(4 * 0.98**number)
        assert found["classes"].tolist() == [1.0, 0.0]

    assert {name: np.shape(value) for name, value in tables(state).items()} == dict(GENERATOR)
    assert method.download(phase, state, ALICE) == {GLOBAL: state.shared[GLOBAL], "generator": tables(state)}
    assert method.download(phase, state, None) == {GLOBAL: state.shared[GLOBAL]}
    np.testing.assert_array_equal(state.shared[GLOBAL]["fc.bias"], [1.5, 1.5])  # (3 * 1 + 1 * 3) / 4


def test_weights_of_generated_rows_stay_above_a_ten_thousandth() -> None:
    method = made("fedgen", BUNDLE, options={"alpha": 0, "beta": 0})

    found = tables(after(method, begun(method), [answer(ALICE, 1.0, (3, 0))]))

    assert found["alpha"] == found["beta"] == np.float32(1e-4)


def test_nobody_with_two_photos_of_a_class_means_no_generator() -> None:
    method = made("fedgen", BUNDLE)

    state = after(method, begun(method), [answer(ALICE, 1.0, (1, 1))])

    assert "generator" not in state.shared
    np.testing.assert_array_equal(state.shared["training"]["steps"], [0.0])


def test_a_class_stays_available_and_the_training_goes_on_where_it_was() -> None:
    method = made("fedgen", BUNDLE)
    state = after(method, begun(method), [answer(ALICE, 1.0, (3, 0))])

    state = after(method, state, [answer(BOB, 1.0, (0, 2))])

    assert tables(state)["classes"].tolist() == [1.0, 1.0]
    assert float(state.shared["training"]["steps"][0]) == 10  # 5 iterations in each round


def test_training_lowers_the_loss_of_the_clients() -> None:
    method = made("fedgen", BUNDLE, rounds=100, options={"iterations": 300, "diversity": 0})
    state = begun(method)
    _, noise, labels = drawn(rows=200)
    models = Classifiers(np.array([[[2.0, -2.0], [-2.0, 2.0]]]), np.full((1, 2), 2.0))

    def loss() -> float:
        trained = {name: np.array(value, np.float64) for name, value in state.shared["training"].items()}
        now = forward(trained, noise, labels)
        return generator_loss(now.features, noise, labels, np.ones((2, 1)), models, diversity=0).teacher

    before = loss()
    state = after(method, state, [answer(ALICE, 2.0, (5, 5))])

    assert loss() < 0.9 * before


def test_the_order_of_arrival_and_clients_without_photos_change_nothing() -> None:
    method = made("fedgen", BUNDLE)
    sent = [answer(ALICE, 1.0, (3, 1)), answer(BOB, 3.0, (1, 4)), answer(CAROL, 9.0, (0, 0))]

    one, other = (tables(after(method, begun(method), each)) for each in (sent, sent[1::-1]))

    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])


def test_the_plan_binds_an_optional_generator_and_the_clients_own_counts() -> None:
    method = made("fedgen", BUNDLE, difference=True)

    check_plans(method, BUNDLE)
    plan = method.phases[0].plan
    generator, counts = plan.instructions[1].train.bindings
    assert (generator.source.download, counts.source.label_counts) == ("generator", True)
    assert [each.WhichOneof("kind") for each in plan.statistics] == ["class_counts"]
    assert plan.uploads[0].base == GLOBAL


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"objective: found 'cross_entropy', must be generated for fedgen"):
        made("fedgen", network())
    with pytest.raises(SettingsError, match=r"options.rows: found 1, must be a whole number, 2 to"):
        made("fedgen", BUNDLE, options={"rows": 1})
    tensors = [tensor for tensor in BUNDLE.parsed.tensors if tensor.name != "fc.bias"]
    with pytest.raises(SettingsError, match=r"found another classifier, must be one of an FC layer with a bias"):
        made("fedgen", changed(BUNDLE, tensors=tensors))
