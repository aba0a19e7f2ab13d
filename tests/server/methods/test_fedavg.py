from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlens_proto.blob import Array
from fedlens_server.methods.fedavg import average
from fedlens_server.methods.fedavg_last_fc import average_rows
from fedlens_server.methods.fedns import average_nodes
from fedlens_server.planning.method import NothingToAggregate
from tests.server.methods.golden import cases

Mean = Callable[[list[Array], list[int]], Array]


def by_class(tensors: list[Array], counts: list[int]) -> Array:
    """FedAvg+lastFC's mean; nobody has the second class."""
    return average_rows(tensors, [[n, 0] for n in counts], counts)


def by_node(tensors: list[Array], counts: list[int]) -> Array:
    """FedNS's mean of a layer that was 0."""
    return average_nodes(tensors, None, np.zeros_like(tensors[0]), counts)[0]


each_mean = pytest.mark.parametrize("mean", [average, by_class, by_node])


@each_mean
def test_one_client_alone_gives_its_own_weights_back(mean: Mean) -> None:
    weights = np.float32([[0.1, -3.7], [1e-30, 1e30]])

    np.testing.assert_array_equal(mean([weights], [7]), weights)


@each_mean
def test_a_client_without_photos_is_skipped_even_if_its_weights_are_nan(mean: Mean) -> None:
    found = mean([np.float32([[np.nan, 1.0], [np.inf, np.nan]]), np.float32([[2.0, 0.0], [3.0, 4.0]])], [0, 5])

    np.testing.assert_array_equal(found, [[2.0, 0.0], [3.0, 4.0]])


@each_mean
def test_no_photos_at_all_give_no_mean(mean: Mean) -> None:
    with pytest.raises(NothingToAggregate, match="no client trained on any photo"):
        mean([np.float32([[1.0], [2.0]])], [0])


@each_mean
def test_arguments_are_left_as_they_were(mean: Mean) -> None:
    tensors, counts = [np.float32([[1.0], [2.0]]), np.float32([[3.0], [4.0]])], [1, 2]

    mean(tensors, counts)

    np.testing.assert_array_equal(tensors, [[[1.0], [2.0]], [[3.0], [4.0]]])
    assert counts == [1, 2]


def test_a_client_counts_by_its_photos() -> None:
    # (1 * [1, 2] + 3 * [5, 10]) / 4 = [16, 32] / 4
    mean = average([np.array([1, 2], np.float32), np.array([5, 10], np.float32)], [1, 3])

    np.testing.assert_array_equal(mean, [4.0, 8.0])
    assert mean.dtype == np.float32


def test_of_integer_buffers_the_maximum_is_taken() -> None:
    mean = average([np.array([3, 9]), np.array([5, 1]), np.array([99, 99])], [1, 1, 0])

    np.testing.assert_array_equal(mean, [5, 9])
    assert mean.dtype == np.int64
    with pytest.raises(NothingToAggregate):
        average([np.array([3])], [0])


def test_sums_are_in_float64() -> None:
    # In float32 2**24 + 1 is 2**24, so three such sums would lose every 1; the mean is (2**24 + 1 + 1 + 1 + 1) / 5.
    values = [np.float32([2.0**24])] + [np.float32([1.0])] * 4

    assert average(values, [1] * 5)[0] == np.float32((2**24 + 4) / 5)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_the_mean_lies_between_the_least_and_the_greatest_value(data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 5))
    finite = st.floats(-1e6, 1e6, width=32)
    tensors = [data.draw(hnp.arrays(np.float32, (2, 3), elements=finite)) for _ in range(clients)]
    counts = [data.draw(st.integers(1, 10**9)) for _ in range(clients)]

    mean = average(tensors, counts)

    slack = 1e-6 * (1 + np.abs(tensors).max())
    assert (mean >= np.min(tensors, axis=0) - slack).all()
    assert (mean <= np.max(tensors, axis=0) + slack).all()


@pytest.mark.parametrize("method", ["fedavg", "fedclassavg"])
def test_it_agrees_with_the_worked_cases(method: str) -> None:
    for case in [case for case in cases(f"{method}_") if "n" in case.inputs]:
        for name in case.inputs.keys() & case.outputs.keys():
            case.check(name, average(list(case.inputs[name]), case.inputs["n"]))
