"""Paired differences, with the interval and p of a book's example of Student's t."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedlens.compare.report.differences import differences
from fedlens.compare.report.summary import MethodSummary, summarise
from fedlens.compare.report.tables import column_table, difference_table
from fedlens.compare.study import Study, parse_study
from tests.fedlens.compare.conftest import STUDY
from tests.fedlens.compare.report.test_summary import run

METHODS = {"alone": {"method": "local_only"}, "together": {"method": "fedavg"}}


def study(**changes: Any) -> Study:
    values = tomllib.loads(STUDY) | {"seeds": [1, 2, 3], "methods": METHODS} | changes
    return parse_study(values, Path(), "small.toml")


def summary(label: str, *right: int) -> MethodSummary:
    """A method that is right in so many of 10 photos, by seed."""
    return summarise(label, [run(seed, correct) for seed, correct in enumerate(right, start=1)])


def test_mean_interval_and_p_are_those_of_the_paired_t_test() -> None:
    found = differences(study(), [summary("alone", 2, 2, 2), summary("together", 3, 4, 5)], ["global_accuracy"])

    (difference,) = found
    assert (difference.label, difference.baseline, difference.seeds) == ("together", "alone", 3)
    # Gains of 0.1, 0.2 and 0.3: mean 0.2, deviation 0.1. With two degrees of freedom t is 4.3027 for 95 %, and the
    # interval is 0.2 ± 4.3027 * 0.1 / sqrt(3). t = 0.2 / (0.1 / sqrt(3)) = 3.4641 has p = 1 - t / sqrt(t^2 + 2).
    assert difference.mean == pytest.approx(0.2)
    assert difference.interval == pytest.approx((0.2 - 0.248414, 0.2 + 0.248414), abs=1e-6)
    assert difference.p == pytest.approx(1 - 3.4641016 / 14**0.5, abs=1e-6)


def test_only_seeds_that_both_have_are_paired() -> None:
    found = differences(study(), [summary("alone", 2, 2), summary("together", 3, 4, 9)], ["global_accuracy"])

    assert [(each.seeds, each.mean) for each in found] == [(2, pytest.approx(0.15))]


@pytest.mark.parametrize("right", [(3,), (3, 3, 3)])
def test_one_seed_or_equal_differences_have_neither_interval_nor_p(right: tuple[int, ...]) -> None:
    lines = [summary("alone", *[2] * len(right)), summary("together", *right)]

    (difference,) = differences(study(), lines, ["global_accuracy"])

    assert (difference.mean, difference.interval, difference.p) == (pytest.approx(0.1), None, None)
    assert column_table(study(), lines, ["global_accuracy"])[2][2:] == ["+10.0", "-"]


def test_a_chosen_baseline_takes_the_place_of_training_alone() -> None:
    chosen = study(baseline="together")
    lines = [summary("alone", 2, 2, 2), summary("together", 3, 4, 5)]

    header, line = difference_table(chosen, lines)

    assert header[:4] == ["method", "minus", "global accuracy", "personal accuracy"]
    # Every client of these runs is right in the same photos, whatever the seed and the method.
    assert line[:4] == ["alone", "together", "-20.0 (-44.8 to +4.8), p 0.074", "+0.0"]


def test_without_a_method_to_compare_with_there_is_no_table() -> None:
    plain = study(methods={"together": METHODS["together"]})

    assert difference_table(plain, [summary("together", 3, 4, 5)]) == []
