import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlens_server.methods import NothingToAggregate, TaskPlan
from fedlens_server.methods.arithmetic.weighted_mean import CHUNK
from fedlens_server.methods.fedavg import FedAvg, average
from fedlens_server.planning.task_settings import SettingsError, TaskSettings
from tests.server.methods.golden import cases


def test_a_client_counts_by_its_photos() -> None:
    # (1 * [1, 2] + 3 * [5, 10]) / 4 = [16, 32] / 4
    mean = average([np.array([1, 2], np.float32), np.array([5, 10], np.float32)], [1, 3])

    np.testing.assert_array_equal(mean, [4.0, 8.0])
    assert mean.dtype == np.float32


def test_one_client_alone_gives_its_own_weights_back() -> None:
    weights = np.float32([[0.1, -3.7], [1e-30, 1e30]])

    np.testing.assert_array_equal(average([weights], [7]), weights)


def test_a_client_without_photos_is_skipped_even_if_its_weights_are_nan() -> None:
    mean = average([np.float32([np.nan]), np.float32([2.0])], [0, 5])

    np.testing.assert_array_equal(mean, [2.0])


def test_no_photos_at_all_gives_no_mean() -> None:
    with pytest.raises(NothingToAggregate, match="no client trained on any photo"):
        average([np.float32([1.0])], [0])


def test_of_integer_buffers_the_maximum_is_taken() -> None:
    mean = average([np.array([3, 9]), np.array([5, 1]), np.array([99, 99])], [1, 1, 0])

    np.testing.assert_array_equal(mean, [5, 9])
    assert mean.dtype == np.int64


def test_sums_are_in_float64() -> None:
    # In float32 2**24 + 1 is 2**24, so three such sums would lose every 1; the mean is (2**24 + 1 + 1 + 1 + 1) / 5.
    values = [np.float32([2.0**24])] + [np.float32([1.0])] * 4

    assert average(values, [1] * 5)[0] == np.float32((2**24 + 4) / 5)


def test_arguments_are_left_as_they_were() -> None:
    tensors = [np.float32([1.0, 2.0]), np.float32([3.0, 4.0])]

    average(tensors, [1, 2])

    np.testing.assert_array_equal(tensors, [[1.0, 2.0], [3.0, 4.0]])


def test_a_tensor_of_many_chunks_and_threads_equals_the_plain_formula() -> None:
    size = 3 * CHUNK + 17
    tensors = [np.random.default_rng(k).standard_normal(size, dtype=np.float32) for k in range(3)]
    counts = [3, 5, 11]

    expected = np.zeros(size)
    for w, n in zip(tensors, counts, strict=True):
        expected += n / 19 * w.astype(np.float64)

    np.testing.assert_array_equal(average(tensors, counts), expected.astype(np.float32))


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


def test_it_agrees_with_the_worked_cases() -> None:
    for case in cases("fedavg_"):
        for name in case.inputs.keys() & case.outputs.keys():
            case.check(name, average(list(case.inputs[name]), case.inputs["n"]))


def test_options_are_refused_by_name() -> None:
    plan = TaskPlan(
        settings=TaskSettings(method="fedavg", rounds=1, population=1, options={"rho": 0.5}), manifests=(None,)
    )  # type: ignore[arg-type]

    with pytest.raises(SettingsError, match=r"options\.rho: found set, must be left out"):
        FedAvg.for_task(plan)
