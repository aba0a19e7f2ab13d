"""Derived tables, optional references, validation and public rows, with programs that can be done by hand."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from fedlens_edge_client.engines import Engine, Rows
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.training import local_training
from fedlens_edge_client.training.local_training import TrainingResult
from fedlens_edge_client.training.photo_set import PhotoSet, PreparedPhotos, without_validation
from fedlens_edge_client.training.sources import Tensors
from fedlens_proto import blob, keyed_hash, plan_check
from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2, update_pb2
from tests.edge_client.fakes import SEED
from tests.vectors.plan_arithmetic import ByHand, bundle_of, manifest_of
from tests.vectors.plans import assemble, derive, plan, source, train, upload

WEIGHTS = {"fc.bias": np.array([1, 2], np.float32), "fc.weight": np.zeros((2, 3), np.float32)}
PUBLIC = np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.fixture
def engine(tmp_path: Path) -> ByHand:
    raw = blob.encode({"input": PUBLIC, "label": np.zeros(5, np.int64)})
    digest = sha256(raw).digest()
    manifest = manifest_of(manifest_pb2.LAST_BATCH_MASKED, digest, len(raw))
    return ByHand(bundle_of(tmp_path / "b", manifest, {digest: raw}))


def photo_set(count: int, name: str = "train") -> PhotoSet:
    """Photos of classes 0, 1, 0, ..., of which number i has the features i, i, i."""
    digests = sorted(sha256(f"{name}{index}".encode()).digest() for index in range(count))
    inputs = np.repeat(np.arange(count, dtype=np.float32)[:, np.newaxis], 3, axis=1)
    return PhotoSet(tuple((digest, 0) for digest in digests), Rows(inputs, np.arange(count, dtype=np.int64) % 2))


def run(
    engine: ByHand,
    given: pb.LocalPlan,
    photos: int = 4,
    state: Mapping[str, Tensors] | None = None,
    **downloads: Tensors,
) -> TrainingResult:
    plan_check.check(given, engine.bundle.manifest)
    assignment = pb.Assignment(seed=SEED, local_plan=given)
    prepared = PreparedPhotos(photo_set(photos), photo_set(2, "test"), {})
    return local_training.execute(
        assignment, cast(Engine, engine), prepared, {"global": WEIGHTS} | downloads, (state or {}).get, lambda *_: None
    )


def class_sums(rows: pb.Rows = pb.ROWS_TRAIN) -> pb.Instruction:
    return derive("sums", "sums", rows, model=source(value="start"))


def numbers(result: TrainingResult, name: str) -> dict[str, list[float]]:
    return {key: np.ravel(tensor).tolist() for key, tensor in result.uploads[name].items()}


def test_a_table_of_sums_is_derived_from_the_train_photos(engine: ByHand) -> None:
    result = run(engine, plan(assemble("start"), class_sums(), uploads=[upload("sums", "sums")]))

    # Photos 0 to 3 by the bias of their class, 1 or 2: 0*1 + 1*2 + 2*1 + 3*2 = 10
    assert numbers(result, "sums") == {"count": [4.0], "sum": [10.0, 10.0, 10.0]}
    # No training reads the train photos and nobody asks for counts.
    assert result.num_examples == 0


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        # Without a previous mean: 10 / 4. With one of 4.5, half of the way to it: 2.5 + 0.5 * 2 = 3.5.
        (None, 2.5),
        (np.full(3, 4.5, np.float32), 3.5),
        # State of another shape does not fit and counts as absent.
        (np.full(2, 4.5, np.float32), 2.5),
    ],
)
def test_an_optional_reference_counts_only_if_it_fits(engine: ByHand, state: Array | None, expected: float) -> None:
    mean = derive("means", "mean", sums=source(value="sums"), previous=source(state="means"))
    given = plan(
        assemble("start"),
        class_sums(),
        mean,
        uploads=[upload("means", "means")],
        keeps=[pb.Keep(state="means", value="means")],
    )
    result = run(engine, given, state=None if state is None else {"means": {"mean": state}})

    assert numbers(result, "means") == {"mean": [expected] * 3}
    assert result.keeps["means"]["mean"].tolist() == [expected] * 3


def test_an_optional_reference_to_a_set_that_is_absent_leaves_the_others(engine: ByHand) -> None:
    both = derive("mixed", "mix", candidate_0=source("global"), candidate_1=source("absent"))
    result = run(engine, plan(both, keeps=[pb.Keep(state="mixed", value="mixed")], uploads=[]))

    # Half of each candidate that is there: 0.5 * (1, 2)
    assert result.keeps["mixed"]["fc.bias"].tolist() == [0.5, 1.0]


def test_a_rule_whose_tensors_earlier_ones_took_needs_no_source(engine: ByHand) -> None:
    norms = pb.TensorSelector(kinds=[manifest_pb2.TENSOR_KIND_NORM])  # this model has none
    start = assemble("start", pb.Rule(source=source("absent"), tensors=norms), pb.Rule(source=source("global")))

    result = run(engine, plan(start, class_sums(), uploads=[upload("sums", "sums")]))

    assert numbers(result, "sums")["count"] == [4.0]


def test_a_required_set_of_a_table_that_does_not_fit_is_named(engine: ByHand) -> None:
    bind = [pb.Binding(reference="means", source=source("means"))]
    nearest = [pb.Evaluation(label="nearest", value="start", program="nearest", bindings=bind)]
    given = plan(assemble("start"), evaluations=nearest)
    with pytest.raises(AssignmentFailed, match="set 'means': tensor 'mean' is") as caught:
        run(engine, given, means={"mean": np.zeros(2, np.float32)})

    assert caught.value.reason == update_pb2.FAILURE_REASON_UNSUPPORTED


def test_a_result_for_each_public_row_stands_in_their_order(engine: ByHand) -> None:
    scores = derive("scores", "scores", pb.ROWS_PUBLIC, model=source(value="start"))
    given = plan(assemble("start"), scores, uploads=[upload("scores", "scores")])

    # Public rows need no photos of one's own.
    assert len(run(engine, given, photos=0).uploads["scores"]["score"]) == 5


def test_public_rows_are_taken_in_the_order_of_zero_digests_and_their_own_copies(engine: ByHand) -> None:
    run(engine, plan(assemble("start"), train(rows=pb.ROWS_PUBLIC)))

    ranks = keyed_hash.photo_ranks(SEED, 0, 0, [(bytes(32), copy) for copy in range(5)])
    order = sorted(range(5), key=ranks.__getitem__)
    assert engine.batches == [[order[:4], order[4:]]]


def test_orders_count_trainings_and_no_other_instructions(engine: ByHand) -> None:
    mean = derive("means", "mean", sums=source(value="sums"))
    given = plan(
        assemble("start"),
        train("warm"),
        class_sums(),
        mean,
        train(start="warm"),
        uploads=[upload(), upload("means", "means")],
    )
    run(engine, given)

    entries = photo_set(4).entries
    orders = [sorted(range(4), key=keyed_hash.photo_ranks(SEED, t, 0, entries).__getitem__) for t in (0, 1)]
    assert engine.batches == [[orders[0]], [orders[1]]]


def test_a_program_with_uniforms_gets_those_of_its_training_and_step(engine: ByHand) -> None:
    counts = [pb.Binding(reference="counts", source=pb.Source(label_counts=True))]
    noisy = train(program="noisy", start="warm", bindings=counts, steps=1)
    result = run(engine, plan(assemble("start"), train("warm", steps=1), noisy), photos=1)

    # One photo of class 0 in each training: the bias 1 grows by lr, then by lr * u * count = lr * u * 1.
    u = keyed_hash.step_uniforms(SEED, 1, 0, 0, 8)[0]
    step = np.float32(0.125)
    assert result.uploads["weights"]["fc.bias"][0] == np.float32(1) + step + step * u


def with_validation(percent: int) -> pb.LocalPlan:
    mean = derive("means", "mean", sums=source(value="sums"))
    return plan(
        assemble("start"),
        train(),
        class_sums(pb.ROWS_VALIDATION),
        mean,
        uploads=[upload(), upload("sums", "sums"), upload("means", "means")],
        statistics=[pb.Statistic(class_counts=pb.ClassCounts())],
        validation_percent=percent,
    )


def test_validation_photos_are_neither_trained_on_nor_counted(engine: ByHand) -> None:
    result = run(engine, with_validation(50), photos=20)

    apart = [keyed_hash.is_validation_photo(digest, 50) for digest, _ in photo_set(20).entries]
    assert 0 < sum(apart) < 20
    assert numbers(result, "sums")["count"] == [sum(apart)]
    assert result.num_examples == sum(result.class_counts) == 20 - sum(apart)
    assert sum(len(batch) for batch in engine.batches[0]) == 20 - sum(apart)


def test_the_uploads_of_a_plan_stand_in_its_order(engine: ByHand) -> None:
    assert list(run(engine, with_validation(50), photos=20).uploads) == ["weights", "sums", "means"]


def test_fewer_than_five_photos_are_all_train_and_validation_photos(engine: ByHand) -> None:
    result = run(engine, with_validation(50), photos=4)

    assert (numbers(result, "sums")["count"], result.num_examples) == ([4.0], 4)


def entries_where(is_validation: Sequence[bool]) -> PhotoSet:
    """Photos that are or are not among the validation photos of 50 percent."""
    digests = [sha256(bytes([number])).digest() for number in range(200)]
    of = {kind: [d for d in digests if keyed_hash.is_validation_photo(d, 50) == kind] for kind in (False, True)}
    chosen = sorted(of[kind].pop() for kind in is_validation)
    count = len(chosen)
    return PhotoSet(
        tuple((digest, 0) for digest in chosen), Rows(np.zeros((count, 3), np.float32), np.zeros(count, np.int64))
    )


@pytest.mark.parametrize("kind", [False, True])
def test_where_one_part_would_be_empty_both_are_all_photos(kind: bool) -> None:
    photos = entries_where([kind] * 6)
    assert without_validation(photos, 50) == (photos, photos)


def test_a_photo_stays_a_validation_photo_whatever_the_others_are() -> None:
    many, few = entries_where([True] * 8 + [False] * 8), entries_where([True] * 3 + [False] * 2)
    both = [set(without_validation(photos, 50)[1].entries) for photos in (many, few)]
    assert (len(both[0]), len(both[1])) == (8, 3)
    assert both[1] <= both[0]


@pytest.mark.parametrize("given", [plan(assemble("start"), train()), with_validation(20)])
def test_rows_of_own_photos_need_a_photo(engine: ByHand, given: pb.LocalPlan) -> None:
    with pytest.raises(AssignmentFailed, match="no labelled train photo") as caught:
        run(engine, given, photos=0)

    assert caught.value.reason == update_pb2.FAILURE_REASON_NO_PHOTOS


def test_label_counts_are_of_the_photos_that_are_trained_on(engine: ByHand) -> None:
    counts = [pb.Binding(reference="counts", source=pb.Source(label_counts=True))]
    result = run(engine, plan(assemble("start"), train(program="noisy", bindings=counts)), photos=3)

    assert result.class_counts == (2, 1)
    # Uniforms of the first batch [4, 2]; photo by photo its class's bias grows by lr * u * (2 or 1).
    drawn = keyed_hash.step_uniforms(SEED, 0, 0, 0, 8).reshape(4, 2)
    bias = np.array([1, 2], np.float32)
    for place, row in enumerate(engine.batches[0][0]):
        bias[row % 2] += np.float32(0.125) * drawn[place, 0] * np.float32((2, 1)[row % 2])
    assert result.uploads["weights"]["fc.bias"].tolist() == bias.tolist()
