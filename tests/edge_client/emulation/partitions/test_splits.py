import json
import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from numpy.random import RandomState

from fedlens_edge_client.emulation.partitions import Unservable
from fedlens_edge_client.emulation.partitions.splits import (
    Labels,
    Split,
    classes,
    dirichlet,
    equally,
    halves,
    two_classes,
)

GOLDEN = Path(__file__).parents[5] / "shared" / "golden"
CASES = sorted(GOLDEN.glob("partition_*.npz"))


def balanced(per_class: int, count: int = 10) -> Labels:
    """Labels 0, 1, ..., 0, 1, ...: `per_class` of each."""
    return np.tile(np.arange(count), per_class)


def together(split: Split) -> list[int]:
    return sorted(np.concatenate(split).tolist())


@pytest.mark.skipif(not CASES, reason="the worked cases are not beside this repository")
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_worked_cases_come_out_index_by_index(case: Path) -> None:
    with np.load(case) as file:
        labels, clients, beta, seed = (file[f"in_{key}"] for key in ("labels", "n_clients", "beta", "seed"))
        expected = [row[row >= 0].tolist() for row in file["out_indices"]]
        name = json.loads(str(file["meta_json"]))["case"]
    random, holders = RandomState(int(seed)), Random(int(seed))

    of_classes = re.search(r"label(\d+)$", name)
    if of_classes is not None:
        split = classes(labels, int(clients), int(of_classes[1]), random, holders)
    else:
        split = dirichlet(labels, int(clients), float(beta), 10, random)

    assert [indices.tolist() for indices in split] == expected


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("beta", [0.1, 0.5, 5.0])
@pytest.mark.parametrize(("clients", "least"), [(1, 10), (4, 10), (12, 20)])
def test_dirichlet_gives_every_sample_to_one_client_and_each_client_enough(
    clients: int, least: int, beta: float, seed: int
) -> None:
    split = dirichlet(balanced(60), clients, beta, least, RandomState(seed))

    assert len(split) == clients
    assert together(split) == list(range(600))
    assert min(map(len, split)) >= least


def test_dirichlet_gives_no_class_to_a_client_that_holds_its_part_already() -> None:
    labels = balanced(60)

    split = dirichlet(labels, 10, 0.5, 10, RandomState(3))

    # A client with 600 / 10 = 60 samples before class c gets none of c, so without its last class it has fewer. But
    # what rounding leaves over goes to the last client.
    for indices in split[:-1]:
        assert np.count_nonzero(labels[indices] < labels[indices].max()) < 60


def test_a_smaller_beta_makes_clients_more_different() -> None:
    labels = balanced(60)

    def largest_class_share(beta: float) -> float:
        split = dirichlet(labels, 8, beta, 10, RandomState(1))
        return float(np.mean([np.bincount(labels[indices]).max() / len(indices) for indices in split]))

    assert largest_class_share(0.1) > largest_class_share(1.0) > largest_class_share(100.0)


def test_dirichlet_bears_a_beta_at_which_proportions_vanish() -> None:
    assert together(dirichlet(balanced(60), 2, 1e-4, 1, RandomState(0))) == list(range(600))


def test_dirichlet_says_how_many_clients_there_may_be() -> None:
    with pytest.raises(Unservable, match=r"100 photos are too few for 11 clients with at least 10 each.*at most 10"):
        dirichlet(balanced(10), 11, 0.5, 10, RandomState(0))


def test_dirichlet_ends_where_no_draw_gives_every_client_enough() -> None:
    # 8 clients x 5 = 40: only equal numbers would do, but at so small a beta a class goes to one client or two.
    with pytest.raises(Unservable, match=r"1000 draws of beta 0\.01 .* must have 5: raise beta"):
        dirichlet(balanced(20, count=2), 8, 0.01, 5, RandomState(0))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("clients", "per_client"), [(12, 1), (12, 2), (10, 3), (25, 7), (7, 4), (6, 10)])
def test_each_client_has_k_classes_divided_evenly_among_their_holders(clients: int, per_client: int, seed: int) -> None:
    labels = balanced(61)

    split = classes(labels, clients, per_client, RandomState(seed), Random(seed))

    counts = np.array([np.bincount(labels[indices], minlength=10) for indices in split])
    assert together(split) == list(range(610))
    assert np.count_nonzero(counts, axis=1).tolist() == [per_client] * clients
    assert all(counts[client, client % 10] for client in range(clients))
    for of_class in counts.T:
        held = of_class[of_class > 0]
        assert held.max() - held.min() <= 1


def test_a_class_that_nobody_could_hold_is_refused() -> None:
    # 4 clients x 2 classes hold 8 of 10 at most.
    with pytest.raises(Unservable, match=r"4 clients with 2 of 10 classes each .* take at least 5 clients, better 10"):
        classes(balanced(10), 4, 2, RandomState(0), Random(0))


@pytest.mark.parametrize("per_client", [0, 11])
def test_more_classes_than_there_are_cannot_be_held(per_client: int) -> None:
    with pytest.raises(Unservable, match=rf"{per_client} classes per client, but there are 10"):
        classes(balanced(10), 20, per_client, RandomState(0), Random(0))


@pytest.mark.parametrize("seed", range(5))
def test_two_classes_come_in_equal_numbers(seed: int) -> None:
    labels = balanced(61)

    split = two_classes(labels, 12, RandomState(seed))

    # floor(610 / (2 * 12)) = 25 draws of each of two classes.
    for indices in split:
        found = np.bincount(labels[indices], minlength=10)
        assert sorted(found[found > 0].tolist()) == [25, 25]


def test_two_classes_draw_with_replacement() -> None:
    # 2 classes of 10 for one client: floor(20 / 2) = 10 draws of 10 samples; all different with 10!/10^10 = 0.0004.
    (indices,) = two_classes(balanced(10, count=2), 1, RandomState(0))

    assert len(indices) == 20
    assert len(set(indices.tolist())) < 20


def test_two_classes_pass_over_a_class_without_samples() -> None:
    labels = np.array([0] * 30 + [2] * 30)

    split = two_classes(labels, 5, RandomState(0))

    # floor(60 / 10) = 6 of either.
    assert [np.bincount(labels[indices]).tolist() for indices in split] == [[6, 0, 6]] * 5


@pytest.mark.parametrize(("labels", "clients"), [(balanced(1), 6), (np.zeros(50, np.int64), 2)])
def test_two_classes_need_two_classes_and_a_photo_for_each_draw(labels: Labels, clients: int) -> None:
    with pytest.raises(Unservable, match=f"there must be two classes, and at least {2 * clients} photos"):
        two_classes(labels, clients, RandomState(0))


def test_equal_numbers_differ_by_one_at_most() -> None:
    split = equally(23, 5, RandomState(0))

    assert [len(indices) for indices in split] == [5, 5, 5, 4, 4]
    assert together(split) == list(range(23))


def test_equal_numbers_need_a_sample_for_each_client() -> None:
    with pytest.raises(Unservable, match="4 photos are too few for 5 clients"):
        equally(4, 5, RandomState(0))


def test_halves_cut_each_clients_own_samples() -> None:
    split = dirichlet(balanced(60), 5, 0.5, 40, RandomState(2))

    for indices, (train, test) in zip(split, halves(split), strict=True):
        assert [*train, *test] == indices.tolist()  # `dirichlet` has shuffled them
        assert 0 <= len(test) - len(train) <= 1


def test_nothing_that_is_given_is_changed() -> None:
    labels = balanced(60)
    split = dirichlet(labels, 5, 0.5, 40, RandomState(2))
    before = [indices.copy() for indices in split]

    halves(split)

    assert labels.tolist() == balanced(60).tolist()
    assert [indices.tolist() for indices in split] == [indices.tolist() for indices in before]
