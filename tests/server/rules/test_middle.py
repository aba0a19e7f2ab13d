"""Medians, trimmed means and Krum, on updates without a server."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens_server.methods import METHODS
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import GLOBAL, NothingToAggregate, Shared, Update, span
from fedlens_server.planning.task_settings import SettingsError, TaskSettings
from fedlens_server.rules import krum as krum_module
from fedlens_server.rules.fitting import need_fitting
from fedlens_server.rules.krum import krum
from fedlens_server.rules.middle import middle_update
from tests.server.fakes import client_ids

LARGEST = float(np.finfo(np.float32).max)
FLOATS = st.floats(-LARGEST, LARGEST, width=32)
SENT = {GLOBAL: {"w": np.zeros(2, np.float32), "n": np.zeros(1, np.int64)}}


def updates(*values: float, counts: list[int] | None = None) -> list[Update]:
    """One client for each value, which is the first weight; the second one is 1, and the integer 100 and up."""
    found = zip(client_ids(len(values)), values, counts or [10] * len(values), strict=True)
    return [
        Update(
            client=client,
            num_examples=count,
            values={WEIGHTS: {"w": np.array([value, 1], np.float32), "n": np.array([100 + i])}},
            sent=SENT,
        )
        for i, (client, value, count) in enumerate(found)
    ]


def left_out(share: float | None = None) -> Callable[[int], int]:
    return settings(median=share is None, trimmed_mean=share).left_out


def middle(values: list[float], share: float | None = None) -> float:
    return float(middle_update(updates(*values), left_out(share)).values[WEIGHTS]["w"][0])


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([3e38, 1, 2], None, 2.0),
        ([8, 1, 2, 4], None, 3.0),
        ([3e38, 3e38], None, float(np.float32(3e38))),  # their sum is beyond float32
        ([5], None, 5.0),
        ([100, 1, 2, 3, -100], 0.2, 2.0),  # one at each end
        ([100, 1, 2, 3, -101], 0.19, 1.0),  # floor(0.95): none, so 5 / 5
        ([1, 2, 4, 100, -100, 0], 0.49, 1.5),  # two at each end
    ],
)
def test_the_middle_of_a_coordinate(values: list[float], share: float | None, expected: float) -> None:
    assert middle(values, share) == expected


def test_a_share_is_of_what_is_written() -> None:
    assert left_out(0.29)(100) == 29  # in binary numbers 28.999999999999996


@given(st.lists(FLOATS, min_size=1, max_size=40), st.floats(0.01, 0.49), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_sorting_gives_the_same(values: list[float], share: float, order: object) -> None:
    cut = floor(Fraction(str(share)) * len(values))
    kept = np.sort(np.array(values, np.float32))[cut : len(values) - cut]
    shuffled = values.copy()
    order.shuffle(shuffled)  # type: ignore[attr-defined]

    assert middle(values) == float(np.float32(np.median(np.array(values, np.float64))))
    assert middle(shuffled, share) == middle(values, share) == float(kept.mean(dtype=np.float64).astype(np.float32))


def test_one_update_stands_for_all_whatever_they_count_and_who_has_no_photos_does_not() -> None:
    found = middle_update(updates(1, 2, 9, -50, counts=[1, 10**6, 1, 0]), left_out())

    assert found.num_examples == 10**6 + 2
    assert found.values[WEIGHTS]["n"].tolist() == [101]  # the lower one of the middle of 100, 101 and 102
    assert span(found.values[WEIGHTS], "w", 1, 2, np.empty(1, np.float32)).tolist() == [1.0]
    assert sorted(found.values[WEIGHTS]) == ["n", "w"]
    with pytest.raises(NothingToAggregate, match="no client trained on any photo"):
        middle_update(updates(1, 2, counts=[0, 0]), left_out())


def test_a_tensor_read_in_several_spans_is_the_median_of_whole_arrays() -> None:
    rows = np.random.default_rng(1).standard_normal((3, 800_000)).astype(np.float32)
    many = [
        Update(client=client, num_examples=1, values={WEIGHTS: {"w": row}})
        for client, row in zip(client_ids(3), rows, strict=True)
    ]
    np.testing.assert_array_equal(middle_update(many, left_out()).values[WEIGHTS]["w"], np.median(rows, axis=0))


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=9), st.sampled_from([1e3, -3e38]), st.integers(0, 99))
def test_krum_keeps_the_cluster(honest: list[float], far: float, place: int) -> None:
    bad = (len(honest) - 1) // 3  # n = honest + bad >= 2 bad + 3
    values = honest.copy()
    for _ in range(bad):
        values.insert(place % (len(values) + 1), far)

    kept = krum(updates(*values), bad)

    assert sorted(float(each.values[WEIGHTS]["w"][0]) for each in kept) == sorted(map(float, np.float32(honest)))


def test_scores_of_krum_by_hand() -> None:
    # Of 0, 1, 3, 6 and 10 with f = 1, scores are of the 2 nearest others: 1 + 9, 1 + 4, 4 + 9, 9 + 16, 16 + 49.
    found = updates(10, 6, 0, 3, 1)
    assert krum(found, 1) == found[1:]


def test_scores_of_krum_are_of_all_elements_however_few_are_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(krum_module, "_ROOM", 1)
    monkeypatch.setattr(krum_module, "_LEAST", 1)
    found = updates(10, 6, 0, 3, 1)
    turned = [replace(each, values={WEIGHTS: {"w": each.values[WEIGHTS]["w"][::-1]}}) for each in found]

    assert krum(turned, 1) == turned[1:]


def test_krum_needs_enough_updates_with_photos_and_prefers_the_first_of_equals() -> None:
    same = updates(1, 1, 1, 1, 1, 7, counts=[1, 1, 1, 1, 1, 0])
    assert krum(same, 1) == same[:4]
    with pytest.raises(NothingToAggregate, match="rule `krum` needs 7 updates of clients with photos, 5 came"):
        krum(same, 2)


def settings(**fields: object) -> TaskSettings:
    return TaskSettings.model_validate({"method": "fedavg", "rounds": 1, "selection": "arrivals", "goal": 9} | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"median": True, "trimmed_mean": 0.1}, "trimmed_mean: found 0.1, must be left out with median"),
        ({"krum": 2}, r"min_reports: found 5, must be at least 2 \* krum \+ 3 = 7"),
        ({"median": True, "dp": {"clip": 1, "noise": 1}, "max_participations": 1}, "median: found true, must be off"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(**fields)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_rules_are_refused_for_methods_that_they_do_not_fit(name: str) -> None:
    method = METHODS[name]
    for fields, fits in (
        ({"krum": 1}, method.shares >= Shared.MODEL),
        ({"median": True}, method.shares >= Shared.MEAN or name in ("fedmd", "fedproto")),
        ({"trimmed_mean": 0.2}, method.shares >= Shared.MEAN or name in ("fedmd", "fedproto")),
    ):
        asked = settings(method=name, **fields)
        if fits:
            need_fitting(asked, method)
        else:
            with pytest.raises(SettingsError, match=f"with method '{name}', which .*one m"):
                need_fitting(asked, method)
