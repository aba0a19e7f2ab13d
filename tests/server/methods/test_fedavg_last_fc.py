import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlens_server.methods.fedavg import average
from fedlens_server.methods.fedavg_last_fc import average_rows, class_weights
from tests.server.fakes import ALICE, BOB
from tests.server.methods.golden import cases
from tests.server.methods.tasks import after, begun, made, update
from tests.server.networks import weights


def test_each_row_counts_by_the_photos_of_its_class() -> None:
    # Class 0: (3 * 10 + 1 * 20) / 4 = 12.5; class 1: (1 * 2 + 1 * 4) / 2 = 3.
    found = average_rows([np.float32([[10.0], [2.0]]), np.float32([[20.0], [4.0]])], [[3, 1], [1, 1]], [4, 2])

    np.testing.assert_array_equal(found, [[12.5], [3.0]])
    assert found.dtype == np.float32


def test_the_row_of_a_class_that_nobody_has_counts_by_all_photos() -> None:
    # Class 1 has no photo: (4 * 2 + 1 * 7) / 5 = 3.
    found = average_rows([np.float32([1.0, 2.0]), np.float32([6.0, 7.0])], [[4, 0], [1, 0]], [4, 1])

    np.testing.assert_array_equal(found, [2.0, 3.0])


def test_a_client_without_a_class_leaves_its_row_alone_even_if_it_is_nan() -> None:
    found = average_rows([np.float32([np.nan, 2.0]), np.float32([6.0, 8.0])], [[0, 1], [2, 1]], [1, 3])

    np.testing.assert_array_equal(found, [6.0, 5.0])


COUNTS = st.integers(1, 5).flatmap(lambda k: hnp.arrays(np.int64, (k, 4), elements=st.integers(0, 10**6)))


@settings(max_examples=50, deadline=None)
@given(counts=COUNTS.filter(lambda counts: counts.sum() > 0))
def test_the_weights_of_each_class_add_up_to_1(counts: np.ndarray) -> None:
    np.testing.assert_allclose(class_weights(counts, counts.sum(axis=1).tolist()).sum(axis=1), 1.0, rtol=1e-12)


def test_it_agrees_with_the_worked_cases() -> None:
    for case in cases("lastfc_"):
        given = case.inputs
        for name in case.outputs.keys() & {"weight", "bias"}:
            case.check(name, average_rows(list(given[name]), given["class_counts"], given["n"]))
        for name in case.outputs.keys() & {"hidden"}:
            case.check(name, average(list(given[name]), given["n"]))


def test_clients_are_asked_for_their_class_counts() -> None:
    (phase,) = made("fedavg_last_fc").phases

    assert [ask.WhichOneof("kind") for ask in phase.plan.statistics] == ["class_counts"]


def test_only_the_classifier_counts_by_class() -> None:
    method = made("fedavg_last_fc")
    sent = [update(ALICE, weights(2.0), 4, class_counts=(1, 3)), update(BOB, weights(6.0), 4, class_counts=(3, 1))]

    found = after(method, begun(method), sent).shared["global"]

    # Class 0: (1 * 2 + 3 * 6) / 4 = 5; class 1: (3 * 2 + 1 * 6) / 4 = 3; all else (4 * 2 + 4 * 6) / 8 = 4.
    np.testing.assert_array_equal(found["fc.bias"], [5.0, 3.0])
    np.testing.assert_array_equal(found["fc.weight"], [[5.0, 5.0], [3.0, 3.0]])
    np.testing.assert_array_equal(found["conv.weight"], np.full((2, 3), 4.0))
    np.testing.assert_array_equal(found["bn.mean"], [4.0, 4.0])
    assert found["bn.batches"] == 6
