import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlens_server.methods.arithmetic.linear_combination import CHUNK, blocks_of, linear_combination
from fedlens_server.methods.arithmetic.weighted_sum import WeightedSum


@pytest.mark.parametrize("hole", [np.nan, np.inf])
def test_a_row_of_weight_0_is_not_looked_at(hole: float) -> None:
    tensors = [np.float32([[1.0], [hole]]), np.float32([[3.0], [4.0]])]

    found = linear_combination(tensors, np.array([[0.5, 0.5], [0.0, 1.0]]))

    np.testing.assert_array_equal(found, [[2.0], [4.0]])


@pytest.mark.parametrize("shape", [(3 * CHUNK + 17,), (3, 2 * CHUNK + 5), (5, 7), (CHUNK, 3), ()])
def test_a_tensor_of_any_shape_equals_the_plain_formula(shape: tuple[int, ...]) -> None:
    tensors = [np.random.default_rng(k).standard_normal(shape, dtype=np.float32) for k in range(3)]
    rows = shape[0] if shape else 1
    weights = np.random.default_rng(9).random((rows, 3))

    expected = np.zeros((rows, max(1, int(np.prod(shape)) // rows)))
    for k, tensor in enumerate(tensors):
        expected += tensor.reshape(rows, -1).astype(np.float64) * weights[:, k, None]

    np.testing.assert_array_equal(linear_combination(tensors, weights), expected.astype(np.float32).reshape(shape))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_one_weight_for_all_is_the_same_weight_for_each_row(data: st.DataObject) -> None:
    tensors = [data.draw(hnp.arrays(np.float32, (3, 2), elements=st.floats(-100, 100, width=32))) for _ in range(3)]
    weights = data.draw(hnp.arrays(np.float64, 3, elements=st.floats(0, 1)))

    found = linear_combination(tensors, weights)

    np.testing.assert_array_equal(found, linear_combination(tensors, np.tile(weights, (3, 1))))


def test_a_span_of_a_weighted_sum_of_many_chunks_equals_the_plain_formula() -> None:
    one, other = np.random.default_rng(0).standard_normal((2, 3 * CHUNK), dtype=np.float32)
    start, stop = 5, 2 * CHUNK + 11

    found = WeightedSum({"w": [(0.25, {"w": one}), (0.75, {"w": other})]}).span("w", start, stop)

    expected = 0.25 * one[start:stop].astype(np.float64) + 0.75 * other[start:stop].astype(np.float64)
    np.testing.assert_array_equal(found, expected.astype(np.float32))


def test_blocks_cover_every_element_once() -> None:
    for rows, columns in ((7, 3), (2, CHUNK), (3, 2 * CHUNK + 1), (CHUNK + 1, 1)):
        covered = sum((b.bottom - b.top) * (b.right - b.left) for b in blocks_of(rows, columns))

        assert covered == rows * columns
        assert all((b.bottom - b.top) * (b.right - b.left) <= CHUNK for b in blocks_of(rows, columns))
