from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlens_server.methods.arithmetic import clustering
from fedlens_server.methods.arithmetic.clustering import (
    elbow,
    inertias,
    k_by_elbow,
    k_means,
    label_distributions,
    size_limit,
)
from tests.server.methods import golden

CORNERS = np.float64([[0, 0, 1], [1, 0, 0], [0, 1, 0]])


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def around(corners: np.ndarray, sizes: list[int], spread: float = 0.01) -> np.ndarray:
    """So many rows near each corner, mixed."""
    rows = np.repeat(corners, sizes, axis=0)
    return draws(7).permutation(rows + draws(8).normal(0, spread, rows.shape))


def together(labels: np.ndarray) -> np.ndarray:
    return labels[:, None] == labels[None, :]


def test_the_worked_cases_of_groups_come_out() -> None:
    for case in golden.cases("fedconcat_01"):
        rows = label_distributions(case.inputs["class_counts"])
        found = k_means(rows, int(case.inputs["K"]), draws())

        case.check("distribution", rows)
        case.check("comembership", together(found.labels))
        case.check("inertia", np.float64(found.inertia))


def test_noisy_distributions_are_clustered_as_they_come() -> None:
    # Neither clipped at 0 nor made to add up to 1; the cases have three groups.
    for case in golden.cases("fedconcat_02"):
        noisy = case.inputs["distribution"] + case.inputs["noise"]
        found = k_means(noisy, 3, draws())

        case.check("noisy", noisy)
        case.check("comembership", together(found.labels))


def test_a_label_distribution_is_of_the_clients_own_photos() -> None:
    np.testing.assert_array_equal(label_distributions(np.array([[1, 3], [10, 0]])), [[0.25, 0.75], [1, 0]])


def test_centres_are_means_and_inertia_is_the_squared_distance_to_them() -> None:
    # Means 1 and 11; distances 1, 1, 1, 1.
    found = k_means(np.float64([[0], [12], [2], [10]]), 2, draws())

    np.testing.assert_array_equal(found.labels, [0, 1, 0, 1])
    np.testing.assert_array_equal(found.centres, [[1], [11]])
    assert found.inertia == 4.0


@pytest.mark.parametrize("balanced", [False, True])
def test_groups_are_numbered_by_their_first_row_whatever_the_seed(balanced: bool) -> None:
    rows = around(CORNERS, [4, 4, 4])

    labels = [k_means(rows, 3, draws(seed), balanced=balanced).labels for seed in range(5)]

    assert labels[0][0] == 0
    for other in labels[1:]:
        np.testing.assert_array_equal(other, labels[0])


def test_the_same_generator_gives_the_same_groups_of_rows_without_structure() -> None:
    rows = draws(3).random((200, 10))

    first, second = (k_means(rows, 7, draws(4)) for _ in range(2))

    np.testing.assert_array_equal(first.labels, second.labels)
    assert first.inertia == second.inertia


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize(("rows", "expected"), [([[0.5, 0.5]] * 4, 1), ([[1, 0], [0, 1], [1, 0]], 2), ([[1, 0]], 1)])
def test_fewer_different_rows_than_groups_make_fewer_groups(
    rows: list[list[float]], expected: int, balanced: bool
) -> None:
    found = k_means(np.float64(rows), 3, draws(), balanced=balanced)

    assert len(found.centres) == expected
    assert set(found.labels) == set(range(expected))


@pytest.mark.parametrize(
    ("rows", "clusters", "limit"),
    # max(ceil(N/K), int(1.2 N/K)): 40/5 = 8, 9.6; 10/3 = 3.3 -> 4, 4.0; 8/5 = 1.6 -> 2, 1.92; 5/5 = 1, 1.2.
    [(40, 5, 9), (10, 3, 4), (8, 5, 2), (5, 5, 1), (7, 1, 8)],
)
def test_the_limit_of_a_balanced_group_is_the_papers(rows: int, clusters: int, limit: int) -> None:
    assert size_limit(rows, clusters) == limit


def test_a_balanced_group_gives_away_what_is_over_the_limit() -> None:
    # 8 rows at about 0 and 2 at 10, limit max(5, int(6)) = 6: the two rows nearest to 10 change sides.
    rows = np.float64([[0], [0.1], [0.2], [0.3], [0.4], [0.5], [0.6], [0.7], [10], [10.1]])

    found = k_means(rows, 2, draws(), balanced=True)

    np.testing.assert_array_equal(found.labels, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1])


def test_balanced_groups_that_are_small_enough_are_k_means_own() -> None:
    rows = around(CORNERS, [4, 4, 4])

    plain, balanced = k_means(rows, 3, draws()), k_means(rows, 3, draws(), balanced=True)

    np.testing.assert_array_equal(plain.labels, balanced.labels)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4).flatmap(lambda k: hnp.arrays(np.float64, (6, k), elements=st.integers(0, 9))), st.data())
def test_no_assignment_within_the_limit_is_cheaper(distances: np.ndarray, data: st.DataObject) -> None:
    rows, clusters = distances.shape
    limit = data.draw(st.integers(-(-rows // clusters), rows))

    labels = clustering._assign(distances, limit)

    every = np.stack(np.meshgrid(*[np.arange(clusters)] * rows, indexing="ij")).reshape(rows, -1).T
    allowed = np.stack([(every == k).sum(1) <= limit for k in range(clusters)]).all(0)
    cheapest = distances[np.arange(rows), every[allowed]].sum(1).min()
    assert np.bincount(labels).max() <= limit
    assert distances[np.arange(rows), labels].sum() == cheapest


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1e3, 1e8, 1e9]))
def test_an_assignment_ends_however_much_is_rounded(seed: int, spread: float) -> None:
    generator = draws(seed)
    rows = generator.laplace(0, spread, (60, 4)) * (generator.random((60, 1)) < 0.5) + generator.random((60, 4))

    labels = clustering._assign(clustering._distances(rows, rows[:12]), size_limit(60, 12))

    # max(ceil(60 / 12), int(1.2 * 60 / 12)) = 6
    assert np.bincount(labels).max() <= 6


def test_a_cycle_that_only_rounding_makes_cheaper_is_no_part_of_a_chain() -> None:
    # From 0 to 1 costs 1e9; from there to 2 and back is -1e-7 by rounding; 3 has room.
    far = np.inf
    cost = np.float64([[far, 1e9, far, far], [far, far, 1.0, 5.0], [far, -1.0000001, far, 9.0], [far, far, far, far]])

    assert clustering._cheapest_chain(cost, 0, np.array([3])) == [0, 1, 3]


def test_the_elbow_is_farthest_below_the_line_between_the_ends() -> None:
    # Line 10, 7.5, 5, 2.5, 0; below it by 0, 3.5, 4.5, 2.4, 0.
    assert elbow([10, 4, 0.5, 0.1, 0]) == 3


@pytest.mark.parametrize("curve", [[0.0], [5.0], [3.0, 2.0, 1.0], [4.0, 3.9, 0.0], [0.0, 0.0, 0.0]])
def test_a_curve_without_an_elbow_is_one_group(curve: list[float]) -> None:
    assert elbow(curve) == 1


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("more", [0, 1, 4])
def test_clear_groups_are_counted_by_the_elbow_up_to_the_most(count: int, more: int) -> None:
    rows = around(CORNERS[:count], [5] * count, spread=0.0)

    assert k_by_elbow(rows, count + more, draws()) == count


def test_the_inertia_falls_to_nothing_with_a_group_for_each_row() -> None:
    curve = inertias(around(CORNERS, [2, 2, 2]), 8, draws())

    assert len(curve) == 8
    assert all(left >= right for left, right in pairwise(curve))
    assert curve[5:] == [0.0, 0.0, 0.0]
