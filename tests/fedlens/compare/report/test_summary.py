"""Figures over seeds."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedlens.compare.report.summary import Value, run_columns, summarise
from fedlens.compare.report.tables import note, seed_table
from fedlens.compare.study import parse_study
from tests.fedlens.compare.conftest import STUDY


def sums(correct: int, count: int) -> dict[str, Any]:
    return {"count": count, "correct": correct, "loss": 1.0, "confusion": None}


def entry(number: int, *, up: int, model: int | None, state: str = "committed", personal: int = 0) -> dict[str, Any]:
    return {
        "round": number,
        "state": state,
        "reason": "too few" if state == "abandoned" else None,
        "global": None if model is None else sums(model, 10),
        "personal_before": sums(personal, 10),
        "personal_after": None,
        "personal_fine_tuned": None,
        "bytes_up": up,
        "bytes_down": 2 * up,
        "members": [
            member(0, "reported", up=up, before=(4, 4)),
            member(1, "failed", up=0, before=(3, 6)),
        ],
    }


def member(index: int, state: str, *, up: int = 0, photos: int = 5, **right: tuple[int, int]) -> dict[str, Any]:
    """A member of a round; `right` are right test photos, and all of them, by moment."""
    reason = None if state == "reported" else "no photos"
    who = {"client": f"client {index}", "state": state, "reason": reason, "photos": photos, "bytes_up": up}
    measured = {moment: {"count": count, "correct": correct, "loss": 1.0} for moment, (correct, count) in right.items()}
    return who | measured


def run(seed: int, *models: int | None) -> dict[str, Any]:
    rounds = [entry(i, up=100, model=model, personal=i) for i, model in enumerate(models, start=1)]
    seconds = {entry["round"]: 0.5 for entry in rounds}
    settings = {"personal_evaluation": True}
    return {"seed": seed, "settings": settings, "rounds": rounds, "made": {"seconds": seconds}}


def test_mean_and_deviation_are_over_seeds() -> None:
    found = summarise("m", [run(1, 2, 4), run(2, 2, 8)])

    # 0.4 and 0.8: mean 0.6, sample deviation sqrt(0.2^2 + 0.2^2) = 0.2828.
    assert found.columns["global_accuracy"] == Value(pytest.approx(0.6), pytest.approx(0.28284, rel=1e-4), 2)
    assert (found.bytes_up, found.bytes_down, found.seconds) == (200, 400, 1.0)


def test_a_personal_accuracy_is_the_mean_over_clients_and_not_over_photos() -> None:
    # 4 of 4 and 3 of 6: (1 + 0.5) / 2, where all photos together would be 7 of 10.
    found = run_columns(run(1, 3))

    assert found["personal_accuracy"] == pytest.approx(0.75)
    assert found["pooled_accuracy"] == pytest.approx(0.7)


def test_rounds_that_only_count_labels_are_none_in_which_a_client_trains() -> None:
    ended = run(1, 3, 3)
    counting, training = ended["rounds"]
    counting["members"] = [member(0, "reported", up=50)]
    training["members"] = [member(0, "reported", up=1000, after=(3, 4)), member(1, "reported", up=2000, after=(3, 4))]

    assert summarise("m", [ended]).bytes_up_each == 1500


def test_clients_that_could_not_be_measured_are_counted() -> None:
    ended = run(1, 3)
    ended["rounds"][0]["members"] = [member(0, "reported", before=(4, 4)), member(1, "failed"), member(2, "pending")]
    study = parse_study(tomllib.loads(STUDY) | {"seeds": [1]}, Path(), "small.toml")

    told = note(study, [summarise("m", [ended])])

    assert "Personal figures leave out clients that could not be measured: m (seed 1: 1 of 3 clients)." in told
    assert "could not be measured" not in note(study, [summarise("m", [run(1, 3)])])


def test_each_client_is_judged_by_what_it_would_use_what_that_becomes_and_what_it_last_trained() -> None:
    ended = run(1, 3, 3, 3)
    first, second, last = ended["rounds"]
    first["members"] = [member(0, "reported", after=(1, 4)), member(1, "reported", after=(2, 10))]
    second["members"] = [member(0, "reported", after=(3, 4))]
    last["members"] = [
        member(0, "reported", photos=0, before=(2, 4), fine_tuned=(4, 4)),
        member(1, "reported", photos=0, before=(5, 10), fine_tuned=(6, 10)),
        member(2, "reported", photos=0, before=(1, 2), fine_tuned=(1, 2)),  # never drawn: it trained nothing
        member(3, "reported", photos=0, before=(0, 0), fine_tuned=(0, 0)),  # without test photos
    ]

    found = run_columns(ended)

    columns = ("accuracy", "fine_tuned_accuracy", "last_accuracy")
    assert [found[f"personal_{column}"] for column in columns] == pytest.approx(
        [(0.5 + 0.5 + 0.5) / 3, (1 + 0.6 + 0.5) / 3, (0.75 + 0.2 + 0.5) / 3]
    )
    assert [found[f"pooled_{column}"] for column in columns] == pytest.approx([8 / 16, 11 / 16, (3 + 2 + 1) / 16])


def test_a_global_point_counts_its_own_rounds_bytes_and_a_personal_one_those_before() -> None:
    found = summarise("m", [run(1, 2, None, 6)])

    assert [(p.rounds, p.bytes_up, p.value.mean) for p in found.curves["global_accuracy"]] == [
        (1, 100, pytest.approx(0.2)),
        (3, 300, pytest.approx(0.6)),
    ]
    assert [(p.rounds, p.bytes_up) for p in found.curves["pooled_accuracy"]] == [(0, 0), (1, 100), (2, 200)]


def test_abandoned_rounds_are_told_and_only_their_bytes_count() -> None:
    broken = run(1, 2, 4)
    broken["rounds"].insert(1, entry(9, up=50, model=None, state="abandoned"))

    found = summarise("m", [broken])

    # 100 bytes in each committed round, 50 in the abandoned one between them.
    assert [(p.rounds, p.bytes_up) for p in found.curves["global_accuracy"]] == [(1, 100), (2, 250)]
    assert [(p.rounds, p.bytes_up) for p in found.curves["pooled_accuracy"]] == [(0, 0), (1, 150)]
    assert found.bytes_up == 250
    assert "seed 1, round 9: abandoned, too few" in found.faults
    assert "seed 1, round 1, client 1: failed, no photos" in found.faults


def examined(index: int, **groups: tuple[int, int, dict[str, tuple[int, int]]]) -> dict[str, Any]:
    """A client's part of the final examination: of each group photos, right ones, and both by camera."""
    return {"client": f"client {index}", "people": 2} | {
        name: {
            "count": count,
            "correct": correct,
            "cameras": {camera: {"count": n, "correct": right} for camera, (n, right) in cameras.items()},
        }
        for name, (count, correct, cameras) in groups.items()
    }


def test_the_final_examination_is_a_mean_over_clients_and_by_camera_over_photos() -> None:
    ended = run(1, 3) | {
        "examination": [
            examined(0, own=(4, 4, {"left": (1, 1), "right": (3, 3)}), unseen=(10, 5, {})),
            examined(1, own=(8, 2, {"left": (8, 2)}), unseen=(10, 7, {})),
        ]
    }

    found = summarise("m", [ended])

    # 4 of 4 and 2 of 8; 5 and 7 of 10. Nobody has photos of others.
    assert found.columns["own_accuracy"].mean == pytest.approx((1 + 0.25) / 2)
    assert found.columns["unseen_accuracy"].mean == pytest.approx(0.6)
    assert "others_accuracy" not in found.columns
    # 1 of 1 and 2 of 8 together; 3 of 3.
    assert {key: value.mean for key, value in found.by_camera.items()} == {
        ("own_accuracy", "left"): pytest.approx(3 / 9),
        ("own_accuracy", "right"): pytest.approx(1.0),
    }


def test_a_model_that_clients_keep_beside_the_shared_one_is_the_one_that_they_are_judged_by() -> None:
    ended = run(1, 2, 3)
    for number, entry in enumerate(ended["rounds"], start=1):
        entry["personal_personal"] = sums(4 + number, 10)
        entry["members"] = [member(0, "reported", before=(1, 10), after=(2, 10), personal=(4 + number, 10))]

    found = summarise("ditto", [ended])

    assert found.columns["personal_last_accuracy"].mean == pytest.approx(0.6)
    assert [(point.rounds, point.value.mean) for point in found.curves["pooled_accuracy"]] == [(1, 0.5), (2, 0.6)]


def test_runs_that_are_not_there_and_a_missing_baseline_are_told() -> None:
    values = tomllib.loads(STUDY)
    values["methods"] = {name: {"method": "fedavg"} for name in ("whole", "half", "none")}
    study = parse_study(values, Path(), "small.toml")
    summaries = [summarise("whole", [run(1, 3), run(2, 3)]), summarise("half", [run(1, 3)])]

    told = note(study, summaries)
    header, whole, _ = seed_table(study, summaries)

    assert "There are no results of half (seed 2); none (seed 1, 2)." in told
    assert "There are no differences: no method with the same seeds is the others' baseline" in told
    assert (header[:2], whole[:2]) == (["method", "global accuracy: seeds 1, 2"], ["whole", "30.0, 30.0"])
    assert "over the baseline" not in header
    complete = study.model_copy(update={"methods": {"whole": study.methods["whole"]}})
    assert "There are no" not in note(complete, summaries[:1])


def test_what_a_client_sends_in_a_round_is_counted_where_it_trains() -> None:
    ended = run(1, 2) | {"settings": {"personal_evaluation": False}}
    ended["rounds"][0]["members"] = [
        member(0, "reported", up=90),
        member(1, "reported", up=110),
        member(2, "failed", up=0),
        member(3, "reported", up=7, photos=0),  # it only evaluated
        member(4, "reported", up=7, fine_tuned=(1, 2)),  # it kept what it trained
    ]

    assert summarise("m", [ended]).bytes_up_each == pytest.approx((90 + 110) / 2)


def test_what_a_client_sends_is_counted_also_where_each_round_measures_it_fine_tuned() -> None:
    # As in Per-FedAvg; in the last round clients are only measured.
    ended = run(1, 2, 3)
    training, measuring = ended["rounds"]
    training["members"] = [member(0, "reported", up=90, before=(1, 4), fine_tuned=(2, 4), after=(3, 4))]
    measuring["members"] = [member(0, "reported", up=7, before=(1, 4), fine_tuned=(2, 4))]

    assert summarise("m", [ended]).bytes_up_each == 90


def test_what_a_client_sends_is_counted_also_where_it_tells_nothing_of_its_photos() -> None:
    private = run(1, 2) | {"settings": {"personal_evaluation": False, "dp": {"clip": 1.0, "noise": 1.0}}}
    private["rounds"][0]["members"] = [member(0, "reported", up=90, photos=0), member(1, "failed", photos=0)]

    assert summarise("m", [private]).bytes_up_each == 90


def test_gains_are_told_seed_by_seed_over_the_line_that_trains_alone_with_the_same_head() -> None:
    values = tomllib.loads(STUDY)
    values["methods"] = {
        "alone": {"method": "local_only"},
        "together": {"method": "fedavg"},
        "linear": {"method": "fedavg", "head": "linear"},
    }
    study = parse_study(values, Path(), "small.toml")
    # Right out of ten in the last round, by seed.
    right = {"alone": (2, 4), "together": (5, 4), "linear": (6, 7)}
    summaries = [summarise(name, [run(1, one), run(2, other)]) for name, (one, other) in right.items()]

    header, alone, together, linear = seed_table(study, summaries)

    assert header[:3] == ["method", "global accuracy: seeds 1, 2", "over the baseline"]
    assert alone[:3] == ["alone", "20.0, 40.0", "-"]
    assert together[:3] == ["together", "50.0, 40.0", "+30.0, +0.0"]
    assert linear[:3] == ["linear", "60.0, 70.0", "-"]


def test_one_seed_has_no_deviation_and_needs_no_table_of_seeds() -> None:
    study = parse_study(tomllib.loads(STUDY) | {"seeds": [1]}, Path(), "small.toml")

    found = summarise("plain", [run(1, 3)])

    assert found.columns["global_accuracy"].deviation is None
    assert seed_table(study, [found]) == []
