from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedlens_server.methods.arithmetic.linear_combination import CHUNK
from fedlens_server.methods.fedavg_last_fc import average_rows
from fedlens_server.methods.fedns import average_nodes, coefficients, keep, node_variances
from tests.server.fakes import ALICE, BOB, CAROL
from tests.server.methods.golden import cases
from tests.server.methods.tasks import after, begun, made, update
from tests.server.networks import weights

ORIGIN = np.zeros((1, 2), np.float32)
CONV = {"conv.weight": np.float32([[0, 0, 6]] * 2)}


def node(*elements: float) -> NDArray[np.float32]:
    """A layer of one node."""
    return np.float32([elements])


def test_a_node_counts_by_the_variance_of_its_movement() -> None:
    # Var[0, 2] = 1, Var[0, 4] = 4: shares 1/5 and 4/5. Weight 0.2 * [0, 2] + 0.8 * [0, 4] = [0, 3.6];
    # bias 0.2 * 10 + 0.8 * 20 = 18.
    weight, bias = average_nodes([node(0, 2), node(0, 4)], [np.float32([10]), np.float32([20])], ORIGIN, [1, 1])

    np.testing.assert_allclose(weight, [[0.0, 3.6]], rtol=1e-6)
    np.testing.assert_allclose(bias, [18.0], rtol=1e-6)  # type: ignore[arg-type]
    assert weight.dtype == np.float32


def test_variances_are_of_the_movement_from_the_model_that_was_sent() -> None:
    # Movements [1, 1] and [0, 4] have variances 0 and 4.
    found = node_variances([node(8, 4), node(7, 7)], node(7, 3))

    np.testing.assert_array_equal(found, [[0.0, 4.0]])


def test_bias_plays_no_part_in_the_variance() -> None:
    calm = average_nodes([node(0, 2), node(0, 2)], [np.float32([0]), np.float32([0])], ORIGIN, [1, 1])
    wild = average_nodes([node(0, 2), node(0, 2)], [np.float32([0]), np.float32([1e6])], ORIGIN, [1, 1])

    np.testing.assert_array_equal(calm[0], wild[0])


def test_one_client_of_six_that_moved_strangely_is_left_out() -> None:
    # v = 1, 1, 1, 1, 1, 7: mu = 2, sigma = sqrt((5 * 1 + 25) / 6) = 2.236, |7 - 2| = 5 > 4.472.
    kept = keep(np.array([[1.0, 1, 1, 1, 1, 7]]))

    np.testing.assert_array_equal(kept, [[True] * 5 + [False]])


def test_at_the_end_of_the_interval_a_client_is_kept() -> None:
    # v = 0, 0, 0, 0, 5: mu = 1, sigma = sqrt((4 * 1 + 16) / 5) = 2, |5 - 1| = 4 = 2 sigma.
    assert keep(np.array([[0.0, 0, 0, 0, 5]])).all()


@pytest.mark.parametrize("scale", [1e-12, 0.1, 1 / 3, 1e9])
def test_with_five_clients_nobody_can_be_left_out_at_any_scale(scale: float) -> None:
    assert keep(np.array([[scale, scale, scale, scale, 7 * scale]])).all()


# The least are squares of differences between subnormal float32.
VARIANCES = st.just(0.0) | st.floats(1e-90, 1e76)


@settings(max_examples=100, deadline=None)
@given(variances=st.integers(1, 5).flatmap(lambda k: hnp.arrays(np.float64, (4, k), elements=VARIANCES)))
def test_fewer_than_a_quarter_can_be_left_out_so_of_five_none(variances: NDArray[np.float64]) -> None:
    assert keep(variances).all()


def test_where_nobody_moved_a_node_counts_by_photos() -> None:
    weight, bias = average_nodes([node(5, 5), node(5, 5)], [np.float32([0]), np.float32([4])], node(5, 5), [3, 1])

    np.testing.assert_array_equal(weight, [[5.0, 5.0]])
    np.testing.assert_array_equal(bias, [1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_where_all_moved_by_a_constant_a_node_counts_by_photos_whatever_the_rounding(dtype: type) -> None:
    before = np.random.default_rng(0).standard_normal((4, 27)).astype(dtype)
    moved = [before + dtype(0.1), before + dtype(0.3)]

    weight, _ = average_nodes(moved, None, before, [3, 1])

    # 0.75 * 0.1 + 0.25 * 0.3 = 0.15
    np.testing.assert_allclose(weight, before + 0.15, rtol=0, atol=1e-6)


def test_a_kept_client_that_did_not_move_counts_by_photos_when_the_one_that_did_is_left_out() -> None:
    # v = 0 five times and 9: mu = 1.5, sigma = sqrt((5 * 2.25 + 56.25) / 6) = 3.35, |9 - 1.5| = 7.5 > 6.7.
    found = coefficients(np.array([[0.0, 0, 0, 0, 0, 9]]), [1, 1, 1, 1, 4, 100])

    np.testing.assert_allclose(found, [[0.125, 0.125, 0.125, 0.125, 0.5, 0.0]])


def test_a_client_without_photos_is_no_participant_even_if_its_weights_are_nan() -> None:
    weight, bias = average_nodes(
        [node(np.nan, np.inf), node(0, 2)], [np.float32([np.nan]), np.float32([3])], ORIGIN, [0, 5]
    )

    np.testing.assert_array_equal(weight, [[0.0, 2.0]])
    np.testing.assert_array_equal(bias, [3.0])  # type: ignore[arg-type]


def test_a_layer_may_have_no_bias() -> None:
    assert average_nodes([node(0, 2)], None, ORIGIN, [1])[1] is None


def test_nodes_longer_than_a_chunk_have_the_variance_of_the_plain_formula() -> None:
    shape = (2, 2 * CHUNK + 5)
    generator = np.random.default_rng(3)
    before = generator.standard_normal(shape, np.float32)
    after = [before + generator.normal(5.0, 0.1, shape).astype(np.float32) for _ in range(2)]

    found = node_variances(after, before)

    expected = np.stack([np.var(w.astype(np.float64) - before, axis=1) for w in after], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


LAYERS = st.integers(1, 8).flatmap(
    lambda k: hnp.arrays(np.float32, (k, 3, 4), elements=st.floats(-1000, 1000, width=32))
)


@settings(max_examples=100, deadline=None)
@given(layers=LAYERS, data=st.data())
def test_shares_add_up_to_1_and_the_result_is_finite(layers: NDArray[np.float32], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 1000), min_size=len(layers), max_size=len(layers)))
    before = data.draw(hnp.arrays(np.float32, (3, 4), elements=st.floats(-1000, 1000, width=32)))

    shares = coefficients(node_variances(list(layers), before), counts)
    weight, _ = average_nodes(list(layers), None, before, counts)

    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    assert np.isfinite(weight).all()


@settings(max_examples=50, deadline=None)
@given(layers=LAYERS, data=st.data())
def test_the_order_of_clients_matters_no_more_than_rounding(layers: NDArray[np.float32], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(layers))))
    counts = data.draw(st.lists(st.integers(1, 1000), min_size=len(layers), max_size=len(layers)))
    before = np.zeros((3, 4), np.float32)

    one, _ = average_nodes(list(layers), None, before, counts)
    other, _ = average_nodes([layers[k] for k in order], None, before, [counts[k] for k in order])

    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-4)


def test_it_agrees_with_the_worked_cases() -> None:
    for case in cases("fedns_"):
        given = case.inputs
        layers = sorted(name[7:-2] for name in given if name.startswith("client_") and name.endswith("_w"))
        for layer in layers:
            weights, biases = (list(given[f"client_{layer}_{kind}"]) for kind in "wb")
            if layer == "last":
                case.check("last_w", average_rows(weights, given["class_counts"], given["n"]))
                case.check("last_b", average_rows(biases, given["class_counts"], given["n"]))
                continue
            before = given[f"prev_{layer}_w"]
            weight, bias = average_nodes(weights, biases, before, given["n"])
            variances = node_variances(weights, before)
            case.check(f"{layer}_w", weight)
            case.check(f"{layer}_b", bias)
            case.check(f"{layer}_var", variances)
            case.check(f"{layer}_kept", keep(variances))
            case.check(f"{layer}_coef", coefficients(variances, given["n"]))


def trained(*elements: float) -> dict[str, NDArray[Any]]:
    """The tiny network, both channels of whose convolution have these weights; all else 2."""
    return {**weights(2.0), "conv.weight": np.float32([elements, elements])}


def test_each_kind_of_tensor_is_aggregated_in_its_own_way() -> None:
    method = made("fedns")
    sent = [
        update(ALICE, trained(0, 0, 3), 4, class_counts=(1, 3)),
        update(BOB, {**weights(6.0), **CONV}, 4, class_counts=(3, 1)),
    ]

    found = after(method, begun(method), sent).shared["global"]

    # Var[0, 0, 3] = 2, Var[0, 0, 6] = 8: shares 0.2 and 0.8 of 3 and 6. The classifier by class, BatchNorm by photos.
    np.testing.assert_allclose(found["conv.weight"], [[0, 0, 5.4]] * 2, rtol=1e-6)
    np.testing.assert_array_equal(found["fc.bias"], [5.0, 3.0])
    np.testing.assert_array_equal(found["bn.weight"], [4.0, 4.0])
    np.testing.assert_array_equal(found["bn.mean"], [4.0, 4.0])
    assert found["bn.batches"] == 6
    assert list(found) == sorted(weights(0.0))


def drawn(generator: np.random.Generator) -> dict[str, NDArray[Any]]:
    """The tiny network with random weights."""
    likes = weights(0.0).items()
    return {name: np.asarray(generator.normal(size=like.shape)).astype(like.dtype) for name, like in likes}


@pytest.mark.parametrize("name", ["fedavg", "fedavg_last_fc", "fedns"])
def test_whichever_update_came_first_the_bytes_are_the_same(name: str) -> None:
    method = made(name)
    generator = np.random.default_rng(5)
    sent = [
        update(client, drawn(generator), photos, class_counts=counts)
        for client, photos, counts in ((ALICE, 7, (3, 4)), (BOB, 11, (9, 2)), (CAROL, 13, (6, 7)))
    ]

    one = after(method, begun(method), sent).shared["global"]
    other = after(method, begun(method), [sent[2], sent[0], sent[1]]).shared["global"]

    assert all(one[tensor].tobytes() == other[tensor].tobytes() for tensor in one)
