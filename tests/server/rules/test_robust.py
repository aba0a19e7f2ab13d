"""Rules about updates far from the others, on updates without a server."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens_proto.blob import Array
from fedlens_proto.v1 import blob_pb2, manifest_pb2
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import Norms, Update, span
from fedlens_server.rules import robust
from fedlens_server.rules.robust import Bounds, Tensors
from tests.server.fakes import client_ids

SENT = {"fc.weight": np.ones(2, np.float32), "bn.mean": np.zeros(1, np.float32), "bn.count": np.zeros(1, np.int64)}
TENSORS = Tensors(buffers=frozenset({"bn.mean"}), integers=frozenset({"bn.count"}))
LENGTHS = st.lists(st.floats(0, 1e30), min_size=1, max_size=9)


def update(client: bytes, trained: float, buffers: float = 0.0, count: int = 10, **fields: object) -> Update:
    """A change of that length along the first trained weight, and one of the buffer; 7 batches were counted."""
    values: dict[str, Array] = {
        "fc.weight": SENT["fc.weight"] + np.array([trained, 0], np.float32),
        "bn.mean": np.array([buffers], np.float32),
        "bn.count": np.array([fields.pop("batches", 7)], np.int64),
    }
    bases = dict.fromkeys(values, "global")
    norms = Norms(abs(trained), abs(buffers), 0.0)
    shown = {"num_examples": count, "norms": norms, "bases": bases, **fields}
    return Update(client=client, values={WEIGHTS: values}, sent={"global": SENT}, **shown)  # type: ignore[arg-type]


def updates(*lengths: float) -> list[Update]:
    return [update(client, length) for client, length in zip(client_ids(len(lengths)), lengths, strict=True)]


def changes(found: Sequence[Update]) -> list[float]:
    return [float(each.values[WEIGHTS]["fc.weight"][0] - 1) for each in found]


def test_a_change_above_ten_times_the_median_is_left_out() -> None:
    given_ones = updates(1.0, 1.0, 2.0, 20.0, 20.1)  # the median is 2

    kept, excluded = robust.exclude(given_ones)

    assert kept == given_ones[:4]
    assert excluded == {given_ones[4].client: "the norm of its change is 20.1, more than 10 times the median, 2"}


def test_fewer_than_five_updates_stay_whatever_they_are() -> None:
    few = updates(1.0, 1.0, 1.0, 1e30)
    assert robust.exclude(few) == (few, {})


def test_buffers_far_from_the_others_are_a_reason_of_their_own() -> None:
    honest = [update(client, 1.0, 0.5) for client in client_ids(5)]
    bad = update(b"~" * 32, 1.0, 5.1)
    _, excluded = robust.exclude([*honest, bad])
    assert excluded == {bad.client: "the norm of its change of buffers is 5.1, more than 10 times the median, 0.5"}


@given(LENGTHS)
def test_no_more_than_half_are_left_out_and_a_second_time_clips_nothing(lengths: list[float]) -> None:
    kept, excluded = robust.exclude(updates(*lengths))
    assert len(excluded) <= len(lengths) / 2

    clipped, bounds = robust.clip(kept, None, TENSORS)
    longest = max(np.abs(changes(clipped)))
    assert bounds is None or longest <= bounds.trained * (1 + 1e-4) + 1e-6


def test_changes_are_scaled_to_the_median_one() -> None:
    # The median of 1, 2 and 8 is 2; of the buffers' 0, 0 and 3 it is 0.
    clients = client_ids(3)
    given_ones = [update(clients[0], 1.0), update(clients[1], 2.0), update(clients[2], -8.0, 3.0)]

    clipped, bounds = robust.clip(given_ones, None, TENSORS)

    assert bounds == Bounds(trained=2.0, buffers=0.0)
    assert changes(clipped) == [1.0, 2.0, -2.0]
    assert clipped[2].values[WEIGHTS]["bn.mean"] == [0.0]
    buffer = np.empty(2, np.float32)
    assert span(clipped[2].values[WEIGHTS], "fc.weight", 0, 2, buffer).tolist() == [-1.0, 1.0]
    assert given_ones[2].values[WEIGHTS]["fc.weight"].tolist() == [-7.0, 1.0]  # nothing was changed in place


def test_two_updates_are_clipped_to_the_medians_of_the_round_before() -> None:
    clipped, bounds = robust.clip(updates(1.0, 9.0), Bounds(trained=3.0, buffers=1.0), TENSORS)
    assert changes(clipped) == [1.0, 3.0]
    assert bounds == Bounds(trained=3.0, buffers=1.0)
    assert changes(robust.clip(updates(1.0, 9.0), None, TENSORS)[0]) == [1.0, 9.0]


def test_a_median_of_0_holds_the_others_in_its_own_round_and_nobody_in_the_next() -> None:
    unmoved = [update(client, 1.0, buffer) for client, buffer in zip(client_ids(6), (0, 0, 0, 0, 0, 1e30), strict=True)]
    clipped, bounds = robust.clip(robust.exclude(unmoved)[0], None, TENSORS)
    assert [each.values[WEIGHTS]["bn.mean"][0] for each in clipped] == [0.0] * 6

    assert bounds == Bounds(trained=1.0, buffers=0.0)
    assert robust.clip(unmoved[:2], Bounds(trained=0.0, buffers=0.0), TENSORS)[0] == unmoved[:2]


def test_who_trained_on_nothing_says_nothing_of_the_median() -> None:
    idle = [update(client, 0.0, count=0) for client in client_ids(7)[3:]]
    clipped, bounds = robust.clip([*updates(1.0, 2.0, 4.0), *idle], None, TENSORS)
    assert bounds == Bounds(trained=2.0, buffers=0.0)
    assert changes(clipped)[:3] == [1.0, 2.0, 2.0]


def test_weights_at_the_end_of_the_float_range_are_clipped_without_overflow() -> None:
    largest = float(np.finfo(np.float32).max)
    bad = update(b"~" * 32, largest)
    sent = {"global": SENT | {"fc.weight": np.array([-largest, 1], np.float32)}}
    bad = Update(**{**vars(bad), "sent": sent, "norms": Norms(2 * largest, 0.0, 0.0)})

    clipped, _ = robust.clip([*updates(1.0, 1.0, 1.0), bad], None, TENSORS)

    # One unit from -3.4e38 is -3.4e38, in float32.
    assert clipped[3].values[WEIGHTS]["fc.weight"].tolist() == [-largest, 1.0]


def test_integers_become_the_median_of_all() -> None:
    found = [update(client, 1.0, batches=count) for client, count in zip(client_ids(4), (5, 2**62, 9, 7), strict=True)]
    clipped, _ = robust.clip(found, None, TENSORS)
    # Of 5, 7, 9 and 2^62 the lower one of the middle.
    assert [each.values[WEIGHTS]["bn.count"].tolist() for each in clipped] == [[7]] * 4


def test_nobody_weighs_more_than_three_times_the_median_nor_any_of_its_classes() -> None:
    # The median of 10, 10, 20 and 10^6 that are above 0 is 15, and 3 times that 45. Of 10^6 with 1 and 999,999 of the
    # classes, 45 examples have 1 and 45, rounded up, so that no class is lost. The medians of the classes are 4 and 10:
    # nobody counts more than 12 and 30.
    counts = [(10, (4, 6)), (10, (0, 10)), (20, (10, 10)), (0, (0, 0)), (10**6, (1, 999_999))]
    given_ones = [
        update(client, 1.0, count=count, class_counts=by_class)
        for client, (count, by_class) in zip(client_ids(5), counts, strict=True)
    ]

    capped = robust.cap(given_ones)

    assert [each.num_examples for each in capped] == [10, 10, 20, 0, 45]
    assert [each.class_counts for each in capped] == [(4, 6), (0, 10), (10, 10), (0, 0), (1, 30)]


def test_class_counts_are_optional_to_the_cap() -> None:
    found = [update(client, 1.0, count=count) for client, count in zip(client_ids(3), (1, 1, 100), strict=True)]
    assert [each.num_examples for each in robust.cap(found)] == [1, 1, 3]


@pytest.mark.parametrize("integers", [False, True])
def test_the_names_of_buffers_and_integers_come_from_the_bundle(integers: bool) -> None:
    kind = manifest_pb2.TENSOR_KIND_BUFFER
    dtype = blob_pb2.DTYPE_INT64 if integers else blob_pb2.DTYPE_FLOAT32
    manifest = manifest_pb2.Manifest(tensors=[manifest_pb2.ExchangeableTensor(name="bn", kind=kind, dtype=dtype)])
    found = Tensors.of([manifest])
    assert (found.buffers, found.integers) == ((set(), {"bn"}) if integers else ({"bn"}, set()))
