import gc
import weakref
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlens_edge_client.engines import Rows
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.training import local_training
from fedlens_edge_client.training.evaluation import Evaluation
from fedlens_edge_client.training.local_training import TrainingResult
from fedlens_edge_client.training.photo_set import PhotoSet, PreparedPhotos
from fedlens_edge_client.training.sources import Sources, Tensors
from fedlens_proto import keyed_hash
from fedlens_proto.blob import Array, TensorSpec
from fedlens_proto.manifest import Bundle
from fedlens_proto.plans import Use
from fedlens_proto.slots import LABEL_COUNTS
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2
from fedlens_proto.v1.blob_pb2 import DTYPE_FLOAT32
from tests.edge_client.fakes import (
    SEED,
    evaluation_plan,
    fedavg_plan,
    fine_tune,
    keep_all,
    start_of,
    train,
    train_of,
)
from tests.edge_client.linear import BATCH, LinearEngine, make_bundle

ZEROS = {"fc.bias": np.zeros(2, np.float32), "fc.weight": np.zeros((2, 3), np.float32)}
ONES = {"fc.bias": np.ones(2, np.float32), "fc.weight": np.ones((2, 3), np.float32)}


def photo_set(count: int, name: str = "train") -> PhotoSet:
    digests = sorted(sha256(f"{name}{index}".encode()).digest() for index in range(count))
    inputs = np.linspace(0, 1, count * 3, dtype=np.float32).reshape(count, 3)
    return PhotoSet(tuple((digest, 0) for digest in digests), Rows(inputs, np.arange(count, dtype=np.int64) % 2))


def run(
    engine: LinearEngine,
    plan: assignment_pb2.LocalPlan,
    train: int = 10,
    test: int = 3,
    downloads: Mapping[str, Tensors] | None = None,
    client_state: Mapping[str, Tensors] | None = None,
    on_step: local_training.OnStep = lambda step, steps, loss: None,
) -> TrainingResult:
    assignment = assignment_pb2.Assignment(seed=SEED, local_plan=plan)
    photos = PreparedPhotos(photo_set(train), photo_set(test, "test"), {})
    state = (client_state or {}).get
    return local_training.execute(assignment, engine, photos, downloads or {"global": ZEROS}, state, on_step)


@pytest.fixture
def engine(bundle: Bundle) -> LinearEngine:
    return LinearEngine(bundle)


@pytest.fixture
def comparing(tmp_path: Path) -> LinearEngine:
    """Of a bundle whose step compares with `global`."""
    return LinearEngine(make_bundle(tmp_path / "b", with_reference=True))


def test_references_are_values_downloads_or_client_state(comparing: LinearEngine) -> None:
    plan = fedavg_plan()
    start_of(plan).download = "other"
    bound = train_of(plan).bindings.add(reference="global").source
    given: dict[str, Mapping[str, Tensors]] = {
        "downloads": {"global": ZEROS, "other": ONES},
        "client_state": {"mine": ZEROS},
    }
    for name, value in (("value", "start"), ("download", "global"), ("state", "mine")):
        bound.Clear()
        setattr(bound, name, value)
        run(comparing, plan, **given)

    assert [references["global"]["fc.bias"].tolist() for references in comparing.references] == [[1, 1], [0, 0], [0, 0]]


def test_label_counts_are_those_of_the_train_photos() -> None:
    sources = Sources({}, lambda name: None, {}, np.array([3, 2], np.float32))
    wanted = TensorSpec(LABEL_COUNTS, DTYPE_FLOAT32, (2,))

    taken = sources.take(Use(assignment_pb2.Source(label_counts=True), (wanted,)))

    assert taken is not None
    np.testing.assert_array_equal(taken[LABEL_COUNTS], [3, 2])


def test_an_epoch_takes_the_photos_in_the_order_of_their_keyed_hashes(engine: LinearEngine) -> None:
    run(engine, fedavg_plan(epochs=2))

    entries = photo_set(10).entries
    orders = [sorted(range(10), key=keyed_hash.photo_ranks(SEED, 0, epoch, entries).__getitem__) for epoch in (0, 1)]
    expected = [order[start : start + BATCH] for order in orders for start in (0, 4, 8)]
    assert engine.batches == [expected]
    # Ten photos in batches of four.
    assert [len(batch) for batch in expected] == [4, 4, 2] * 2
    assert orders[0] != orders[1]


def test_a_training_counted_in_steps_runs_on_into_the_next_epoch(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    train_of(plan).steps = 5
    run(engine, plan)
    by_steps = engine.batches[0]
    run(engine, fedavg_plan(epochs=2))

    assert by_steps == engine.batches[1][:5]


def test_the_last_batch_is_filled_cyclically_from_the_start_of_the_epoch_where_the_bundle_says_so(
    tmp_path: Path,
) -> None:
    engine = LinearEngine(make_bundle(tmp_path / "b", last_batch=manifest_pb2.LAST_BATCH_FILLED))
    run(engine, fedavg_plan(), train=6)
    run(engine, fedavg_plan(), train=1)

    first, last = engine.batches[0]
    # Six photos: the second batch holds the last two and then the first two.
    assert last[2:] == first[:2]
    assert engine.batches[1] == [[0, 0, 0, 0]]


def test_two_copies_of_a_photo_have_places_of_their_own() -> None:
    digest = bytes(32)
    twins = PhotoSet(((digest, 0), (digest, 1)), Rows(np.zeros((2, 3), np.float32), np.array([0, 1])))
    train = assignment_pb2.Train(epochs=20)
    masked = manifest_pb2.LAST_BATCH_MASKED
    firsts = {int(batch[0]) for batch in local_training.batches(twins, SEED, 0, train, BATCH, masked)}

    assert firsts == {0, 1}


def test_trainings_follow_each_other_with_orders_of_their_own(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    plan.instructions[1].value = "first"
    plan.instructions.append(train("trained", "first", epochs=1))
    seen: list[tuple[int, int]] = []
    result = run(engine, plan, on_step=lambda step, steps, loss: seen.append((step, steps)))

    assert engine.batches[0] != engine.batches[1]
    assert seen == [(step, 6) for step in range(1, 7)]
    assert not np.array_equal(engine.weights[1]["fc.bias"], result.uploads["weights"]["fc.bias"])


def test_the_first_rule_that_selects_a_tensor_counts(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    rules = plan.instructions[0].assemble.rules
    rules.insert(0, assignment_pb2.Rule(source=assignment_pb2.Source(download="other")))
    rules[0].tensors.names.append("fc.bias")
    run(engine, plan, downloads={"global": ZEROS, "other": ONES})

    np.testing.assert_array_equal(engine.weights[0]["fc.bias"], [1, 1])
    np.testing.assert_array_equal(engine.weights[0]["fc.weight"], np.zeros((2, 3)))


def test_what_is_kept_and_uploaded_is_selected_from_the_trained_tensors(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    plan.uploads[0].tensors.names.append("fc.bias")
    keep_all(plan, "head").tensors.names.append("fc.weight")
    result = run(engine, plan)

    assert list(result.uploads["weights"]) == ["fc.bias"]
    assert list(result.keeps["head"]) == ["fc.weight"]
    assert result.uploads["weights"]["fc.bias"].any()


def test_an_evaluation_phase_trains_and_sends_nothing(engine: LinearEngine) -> None:
    result = run(engine, evaluation_plan(), train=5)

    assert (result.num_examples, result.uploads, result.keeps, engine.batches) == (0, {}, {}, [])
    assert result.evaluations["start"].count == 3
    # Zero weights: log 2 for each of three photos.
    assert result.evaluations["start"].loss == pytest.approx(3 * np.log(2))


def test_fine_tuning_starts_where_the_plan_starts_and_changes_nothing_else(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    plain = run(engine, plan)
    fine_tune(plan, epochs=2)
    seen: list[tuple[int, int]] = []
    tuned = run(engine, plan, on_step=lambda step, steps, loss: seen.append((step, steps)))
    trained, fine_tuned = engine.batches[1:]

    assert engine.weights[1] is engine.weights[2]
    # Ten photos in batches of four: three steps an epoch, in the order of the plan's second training.
    entries = photo_set(10).entries
    order = sorted(range(10), key=keyed_hash.photo_ranks(SEED, 1, 0, entries).__getitem__)
    assert (len(trained), len(fine_tuned)) == (3, 6)
    assert seen == [(step, 9) for step in range(1, 10)]
    assert fine_tuned[0] == order[:BATCH]
    assert list(tuned.evaluations) == ["start", "trained", "fine_tuned"]
    assert tuned.evaluations["trained"] == plain.evaluations["trained"]
    assert tuned.evaluations["fine_tuned"].loss != plain.evaluations["trained"].loss
    assert tuned.uploads["weights"]["fc.weight"].tobytes() == plain.uploads["weights"]["fc.weight"].tobytes()


def test_each_evaluation_has_a_confusion_matrix_if_asked(engine: LinearEngine) -> None:
    plan = fedavg_plan(asking="confusion")
    found = run(engine, plan, test=3).evaluations
    nothing = run(engine, plan, test=0).evaluations["trained"]

    # Zero weights: the logits are equal, so that the first class counts. Labels 0, 1, 0.
    assert (found["start"].confusion, found["start"].correct) == ((2, 0, 1, 0), 2)
    end = found["trained"].confusion
    assert end is not None
    assert (sum(end), end[0] + end[3]) == (3, found["trained"].correct)
    assert nothing == Evaluation(count=0, correct=0, loss=0.0, confusion=(0, 0, 0, 0))
    assert run(engine, fedavg_plan()).evaluations["trained"].confusion is None


def test_class_counts_add_up_to_the_photos_asked_about(engine: LinearEngine) -> None:
    plan = assignment_pb2.LocalPlan(format=1, statistics=fedavg_plan(asking="class_counts").statistics)
    asked = run(engine, plan, train=5)

    assert (asked.class_counts, asked.num_examples) == ((3, 2), 5)


def test_a_plan_that_trains_needs_a_train_photo(engine: LinearEngine) -> None:
    with pytest.raises(AssignmentFailed) as caught:
        run(engine, fedavg_plan(), train=0)

    assert caught.value.reason == update_pb2.FAILURE_REASON_NO_PHOTOS


@pytest.mark.parametrize(
    ("downloads", "named"),
    [
        ({"fc.bias": ZEROS["fc.bias"]}, "downloaded set 'global' has no tensor 'fc.weight'"),
        (ZEROS | {"fc.bias": np.zeros(3, np.float32)}, r"'fc.bias' is float32\[3\], needed is float32\[2\]"),
        (ZEROS | {"fc.bias": np.zeros(2, np.int64)}, r"is int64\[2\]"),
    ],
)
def test_a_set_that_does_not_fit_the_bundle_is_named(
    engine: LinearEngine, downloads: dict[str, Array], named: str
) -> None:
    with pytest.raises(AssignmentFailed, match=named):
        run(engine, fedavg_plan(), downloads={"global": downloads})


def test_required_client_state_that_is_missing_is_named(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    start_of(plan).CopyFrom(assignment_pb2.Source(state="mine"))
    with pytest.raises(AssignmentFailed, match="there is no client state 'mine'"):
        run(engine, plan)


def test_a_value_is_released_when_nothing_reads_it_any_more(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    del plan.evaluations[0]  # the only reader of `start` beside the training
    first = train("first", "start", epochs=1)
    plan.instructions[1].train.start = "first"
    plan.instructions.insert(1, first)
    alive: list[bool] = []
    freed: list[weakref.ref[Array]] = []

    class Watching(LinearEngine):
        def train(self, program: str, weights: Tensors, *others: Any, **more: Any) -> dict[str, Array]:
            alive.append(any(each() is not None for each in freed))
            trained = super().train(program, weights, *others, **more)
            self.weights.clear()
            freed.append(weakref.ref(trained["fc.bias"]))
            return trained

    run(Watching(engine.bundle), plan)
    gc.collect()

    # While the second training runs, `first` is still read; after the plan, nothing holds it.
    assert alive == [False, True]
    assert freed[0]() is None
