from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client.engines import Rows
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.training import local_training
from fedlens_edge_client.training.evaluation import Evaluation
from fedlens_edge_client.training.local_training import TrainingResult
from fedlens_edge_client.training.photo_set import PhotoSet, PreparedPhotos
from fedlens_edge_client.training.sources import LABEL_COUNTS, Tensors
from fedlens_proto import keyed_hash
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2
from tests.edge_client.fakes import SEED, fedavg_plan
from tests.edge_client.linear import BATCH, LinearEngine, make_bundle

ZEROS = {"fc.bias": np.zeros(2, np.float32), "fc.weight": np.zeros((2, 3), np.float32)}
ONES = {"fc.bias": np.ones(2, np.float32), "fc.weight": np.ones((2, 3), np.float32)}
START, END = update_pb2.EVALUATION_MOMENT_START, update_pb2.EVALUATION_MOMENT_END
FINE_TUNED = update_pb2.EVALUATION_MOMENT_FINE_TUNED


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


def test_references_are_the_start_or_a_set_or_the_label_counts(comparing: LinearEngine) -> None:
    plan = fedavg_plan()
    plan.start[0].source.download = "other"
    binding = plan.references.add(name="global", start=True)
    run(comparing, plan, downloads={"global": ZEROS, "other": ONES})
    binding.set.download = "global"
    run(comparing, plan, downloads={"global": ZEROS, "other": ONES})
    binding.label_counts = True
    run(comparing, plan, train=5, downloads={"other": ONES})

    start, of_set, counted = (references["global"] for references in comparing.references)
    np.testing.assert_array_equal(start["fc.bias"], [1, 1])
    np.testing.assert_array_equal(of_set["fc.bias"], [0, 0])
    # Labels alternate from 0: three of class 0, two of class 1.
    np.testing.assert_array_equal(counted[LABEL_COUNTS], [3, 2])


def test_an_epoch_takes_the_photos_in_the_order_of_their_keyed_hashes(engine: LinearEngine) -> None:
    run(engine, fedavg_plan(epochs=2))

    entries = photo_set(10).entries
    orders = [sorted(range(10), key=keyed_hash.photo_ranks(SEED, 0, epoch, entries).__getitem__) for epoch in (0, 1)]
    expected = [order[start : start + BATCH] for order in orders for start in (0, 4, 8)]
    assert engine.batches == [expected]
    # Ten photos in batches of four.
    assert [len(batch) for batch in expected] == [4, 4, 2] * 2
    assert orders[0] != orders[1]


def test_a_stage_counted_in_steps_runs_on_into_the_next_epoch(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    plan.stages[0].steps = 5
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


def test_two_copies_of_a_photo_have_places_of_their_own(engine: LinearEngine) -> None:
    digest = bytes(32)
    twins = PhotoSet(((digest, 0), (digest, 1)), Rows(np.zeros((2, 3), np.float32), np.array([0, 1])))
    stage = assignment_pb2.Stage(program="step", epochs=20)
    firsts = {int(batch[0]) for batch in local_training.batches(twins, SEED, 0, stage, engine.bundle.manifest)}

    assert firsts == {0, 1}


def test_stages_follow_each_other_with_orders_of_their_own(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    plan.stages.add(program="step", epochs=1)
    seen: list[tuple[int, int]] = []
    result = run(engine, plan, on_step=lambda step, steps, loss: seen.append((step, steps)))

    assert engine.batches[0] != engine.batches[1]
    assert seen == [(step, 6) for step in range(1, 7)]
    assert result.upload is not None
    assert not np.array_equal(engine.weights[1]["fc.bias"], result.upload["fc.bias"])


def test_the_first_rule_that_selects_a_tensor_counts(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    del plan.start[:]
    plan.start.add(source=assignment_pb2.SetSource(download="other")).tensors.names.append("fc.bias")
    plan.start.add(source=assignment_pb2.SetSource(download="global"))
    run(engine, plan, downloads={"global": ZEROS, "other": ONES})

    np.testing.assert_array_equal(engine.weights[0]["fc.bias"], [1, 1])
    np.testing.assert_array_equal(engine.weights[0]["fc.weight"], np.zeros((2, 3)))


def test_what_is_kept_and_uploaded_is_selected_from_the_trained_tensors(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    plan.upload.tensors.names.append("fc.bias")
    plan.keep.add(set="head").tensors.names.append("fc.weight")
    result = run(engine, plan)

    assert result.upload is not None
    assert list(result.upload) == ["fc.bias"]
    assert list(result.keep["head"]) == ["fc.weight"]
    assert result.upload["fc.bias"].any()


def test_an_evaluation_phase_trains_and_sends_nothing(engine: LinearEngine) -> None:
    plan = assignment_pb2.LocalPlan(start=fedavg_plan().start, evaluation=assignment_pb2.EvaluationPlan(at_start=True))
    result = run(engine, plan, train=5)

    assert result.upload is None
    assert (result.num_examples, result.keep, engine.batches) == (0, {}, [])
    assert result.evaluations[START].count == 3
    # Zero weights: log 2 for each of three photos.
    assert result.evaluations[START].loss == pytest.approx(3 * np.log(2))


def test_fine_tuning_starts_where_the_plan_starts_and_changes_nothing_else(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    plain = run(engine, plan)
    plan.evaluation.fine_tuning.add(program="step", epochs=2)
    seen: list[tuple[int, int]] = []
    tuned = run(engine, plan, on_step=lambda step, steps, loss: seen.append((step, steps)))
    fine_tuned, trained = engine.batches[1:]

    assert engine.weights[1] is engine.weights[2]
    # Ten photos in batches of four: three steps an epoch, in the order of a stage after those of the plan.
    entries = photo_set(10).entries
    order = sorted(range(10), key=keyed_hash.photo_ranks(SEED, 1, 0, entries).__getitem__)
    assert (len(fine_tuned), len(trained)) == (6, 3)
    assert seen == [(step, 9) for step in range(1, 10)]
    assert fine_tuned[0] == order[:BATCH]
    assert list(tuned.evaluations) == [START, FINE_TUNED, END]
    assert tuned.evaluations[END] == plain.evaluations[END]
    assert tuned.evaluations[FINE_TUNED].loss != plain.evaluations[END].loss
    assert plain.upload is not None and tuned.upload is not None
    assert tuned.upload["fc.weight"].tobytes() == plain.upload["fc.weight"].tobytes()


def test_each_evaluation_has_a_confusion_matrix_if_asked(engine: LinearEngine) -> None:
    plan = fedavg_plan(asking="confusion")
    found = run(engine, plan, test=3).evaluations
    nothing = run(engine, plan, test=0).evaluations[END]

    # Zero weights: the logits are equal, so that the first class counts. Labels 0, 1, 0.
    assert (found[START].confusion, found[START].correct) == ((2, 0, 1, 0), 2)
    end = found[END].confusion
    assert end is not None
    assert (sum(end), end[0] + end[3]) == (3, found[END].correct)
    assert nothing == Evaluation(count=0, correct=0, loss=0.0, confusion=(0, 0, 0, 0))
    assert run(engine, fedavg_plan()).evaluations[END].confusion is None


def test_class_counts_add_up_to_the_photos_asked_about(engine: LinearEngine) -> None:
    plan = assignment_pb2.LocalPlan(start=fedavg_plan().start, statistics=fedavg_plan(asking="class_counts").statistics)
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
        (ZEROS | {"fc.bias": np.zeros(3, np.float32)}, r"'fc.bias' is float32\[3\], the bundle has float32\[2\]"),
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
    plan.start[0].source.CopyFrom(assignment_pb2.SetSource(kept="mine"))
    with pytest.raises(AssignmentFailed, match="there is no client state 'mine' yet"):
        run(engine, plan)


def test_start_rules_must_cover_every_tensor(engine: LinearEngine) -> None:
    plan = fedavg_plan()
    plan.start[0].tensors.names.append("fc.bias")
    with pytest.raises(AssignmentFailed, match=r"no start rule selects tensor 'fc\.weight'"):
        run(engine, plan)
