"""Figures over seeds."""

from typing import Any

import pytest

from fedlens.compare.summary import Value, macro, run_columns, summarise


def sums(correct: int, count: int) -> dict[str, Any]:
    return {"count": count, "correct": correct, "loss": 1.0, "confusion": None}


def entry(number: int, *, up: int, model: int | None, state: str = "committed", personal: int = 0) -> dict[str, Any]:
    return {
        "round": number,
        "state": state,
        "reason": "too few" if state == "abandoned" else None,
        "global": None if model is None else sums(model, 10),
        "personal_start": sums(personal, 10),
        "bytes_up": up,
        "bytes_down": 2 * up,
        "seconds": 0.5,
        "members": [
            {"client": "client 0", "state": "reported", "reason": None, "start": {"count": 4, "correct": 4}},
            {"client": "client 1", "state": "failed", "reason": "no photos", "start": {"count": 6, "correct": 3}},
        ],
    }


def run(seed: int, *models: int | None) -> dict[str, Any]:
    rounds = [entry(i, up=100, model=model, personal=i) for i, model in enumerate(models, start=1)]
    return {"seed": seed, "settings": {"personal_evaluation": True}, "rounds": rounds}


def test_mean_and_deviation_are_over_seeds() -> None:
    found = summarise("m", [run(1, 2, 4), run(2, 2, 8)])

    # 0.4 and 0.8: mean 0.6, sample deviation sqrt(0.2^2 + 0.2^2) = 0.2828.
    assert found.columns["global_accuracy"] == Value(pytest.approx(0.6), pytest.approx(0.28284, rel=1e-4), 2)
    assert (found.bytes_up, found.bytes_down, found.seconds) == (200, 400, 1.0)


def test_one_seed_has_no_deviation() -> None:
    assert summarise("m", [run(1, 3)]).columns["global_accuracy"].deviation is None


def test_a_personal_accuracy_is_the_mean_over_clients_and_not_over_photos() -> None:
    # 4 of 4 and 3 of 6: (1 + 0.5) / 2, where all photos together would be 7 of 10.
    assert run_columns(run(1, 3))["personal_accuracy"] == pytest.approx(0.75)


def test_a_global_point_counts_its_own_rounds_bytes_and_a_personal_one_those_before() -> None:
    found = summarise("m", [run(1, 2, None, 6)])

    assert [(p.rounds, p.bytes_up, p.value.mean) for p in found.curves["global_accuracy"]] == [
        (1, 100, pytest.approx(0.2)),
        (3, 300, pytest.approx(0.6)),
    ]
    assert [(p.rounds, p.bytes_up) for p in found.curves["personal_accuracy"]] == [(0, 0), (1, 100), (2, 200)]


def test_abandoned_rounds_are_told_and_do_not_count() -> None:
    broken = run(1, 2, 4)
    broken["rounds"].insert(1, entry(9, up=50, model=None, state="abandoned"))

    found = summarise("m", [broken])

    assert found.rounds == 2
    assert "seed 1, round 9: abandoned, too few" in found.faults
    assert "seed 1, round 1, client 1: failed, no photos" in found.faults


def test_macro_figures_are_means_over_the_classes_that_are_there() -> None:
    # Class 0: 3 of 4 found, 3 of 5 predictions right. Class 1: 0 of 2, never predicted right. Class 2 is not there.
    precision, recall = macro([[3, 1, 0], [2, 0, 0], [0, 0, 0]])

    assert precision == pytest.approx((3 / 5 + 0) / 2)
    assert recall == pytest.approx((3 / 4 + 0) / 2)
