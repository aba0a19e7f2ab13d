"""Epsilon as Google's dp-accounting computes it; `make_epsilons.py` wrote the file."""

import json
from pathlib import Path

import pytest

from fedlens_server.rules.epsilon import epsilon_of

PAGE = Path(__file__).parents[3] / "docs" / "privacy.md"
VECTORS = json.loads(Path(__file__).with_name("epsilons.json").read_text(encoding="utf-8"))


def test_epsilon_is_that_of_the_analytic_gaussian_mechanism() -> None:
    found = [epsilon_of(noise, delta, times) for noise, delta, times, _ in VECTORS]

    assert len(VECTORS) == 270
    assert found == pytest.approx([epsilon for *_, epsilon in VECTORS], abs=1e-6, rel=1e-9)


def test_the_table_on_the_page_is_that_of_the_code() -> None:
    cells = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    (_, *times), _, *rows = cells

    assert len(rows) == 6
    for noise, *epsilons in rows:
        assert epsilons == [f"{epsilon_of(float(noise), 1e-6, int(k)):.2f}" for k in times]


def test_no_release_costs_nothing_and_more_releases_cost_more() -> None:
    costs = [epsilon_of(1.0, 1e-6, times) for times in range(6)]

    assert costs[0] == 0
    assert costs == sorted(set(costs))


def test_four_releases_are_one_with_half_the_noise() -> None:
    assert epsilon_of(2.0, 1e-6, 4) == epsilon_of(1.0, 1e-6)


def test_a_delta_above_the_probability_that_anything_is_told_costs_nothing() -> None:
    # At epsilon 0 delta is Phi(0.05) - Phi(-0.05) = 0.0399 for z = 10.
    assert epsilon_of(10.0, 0.04) == 0
    assert epsilon_of(10.0, 0.0398) > 0
