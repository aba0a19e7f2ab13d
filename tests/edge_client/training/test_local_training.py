from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedlens_edge_client.engines import Rows
from fedlens_edge_client.errors import PassFailed
from fedlens_edge_client.training import local_training
from fedlens_edge_client.training.local_training import PassResult
from fedlens_edge_client.training.photo_set import PassPhotos, PhotoSet
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


class RecordingEngine(LinearEngine):
    """The linear engine, which remembers what it was given."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.batches: list[list[list[int]]] = []
        self.weights: list[Mapping[str, Array]] = []
        self.references: list[Mapping[str, Mapping[str, Array]]] = []

    def train(
        self,
        program: str,
        weights: Mapping[str, Array],
        rows: Rows,
        batches: Iterable[NDArray[np.int64]],
        hyper: Mapping[str, float],
        references: Mapping[str, Mapping[str, Array]],
        on_step: Callable[[float], None] | None = None,
    ) -> dict[str, Array]:
        given = list(batches)
        self.batches.append([list(map(int, batch)) for batch in given])
        self.weights.append(weights)
        self.references.append(references)
        return super().train(program, weights, rows, given, hyper, references, on_step)


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
    kept: Mapping[str, Tensors] | None = None,
) -> PassResult:
    assignment = assignment_pb2.Assignment(seed=SEED, local_plan=plan)
    photos = PassPhotos(photo_set(train), photo_set(test, "test"), {})
    return local_training.execute(assignment, engine, photos, downloads or {"global": ZEROS}, (kept or {}).get)


@pytest.fixture
def engine(bundle: Bundle) -> RecordingEngine:
    return RecordingEngine(bundle)


def test_an_epoch_takes_the_photos_in_the_order_of_their_keyed_hashes(engine: RecordingEngine) -> None:
    run(engine, fedavg_plan(epochs=2))

    entries = photo_set(10).entries
    orders = [
        sorted(range(10), key=lambda row, epoch=epoch: keyed_hash.photo_rank(SEED, 0, epoch, entries[row][0], 0))
        for epoch in (0, 1)
    ]
    expected = [order[start : start + BATCH] for order in orders for start in (0, 4, 8)]
    assert engine.batches == [expected]
    # Ten photos in batches of four.
    assert [len(batch) for batch in expected] == [4, 4, 2] * 2
    assert orders[0] != orders[1]


def test_a_stage_counted_in_steps_runs_on_into_the_next_epoch(engine: RecordingEngine) -> None:
    plan = fedavg_plan()
    plan.stages[0].steps = 5
    run(engine, plan)
    by_steps = engine.batches[0]
    run(engine, fedavg_plan(epochs=2))

    assert by_steps == engine.batches[1][:5]


def test_the_last_batch_is_filled_cyclically_from_the_start_of_the_epoch_where_the_bundle_says_so(
    tmp_path: Path,
) -> None:
    engine = RecordingEngine(make_bundle(tmp_path / "b", last_batch=manifest_pb2.LAST_BATCH_FILLED))
    run(engine, fedavg_plan(), train=6)
    run(engine, fedavg_plan(), train=1)

    first, last = engine.batches[0]
    # Six photos: the second batch holds the last two and then the first two.
    assert last[2:] == first[:2]
    assert engine.batches[1] == [[0, 0, 0, 0]]


def test_two_copies_of_a_photo_have_places_of_their_own(engine: RecordingEngine) -> None:
    digest = bytes(32)
    twins = PhotoSet(((digest, 0), (digest, 1)), Rows(np.zeros((2, 3), np.float32), np.array([0, 1])))
    stage = assignment_pb2.Stage(program="step", epochs=20)
    firsts = {int(batch[0]) for batch in local_training.batches(twins, SEED, 0, stage, engine.bundle.manifest)}

    assert firsts == {0, 1}


def test_stages_follow_each_other_with_orders_of_their_own(engine: RecordingEngine) -> None:
    plan = fedavg_plan()
    plan.stages.append(assignment_pb2.Stage(program="step", epochs=1))
    seen: list[tuple[int, int]] = []
    assignment = assignment_pb2.Assignment(seed=SEED, local_plan=plan)
    photos = PassPhotos(photo_set(10), photo_set(0), {})
    result = local_training.execute(
        assignment,
        engine,
        photos,
        {"global": ZEROS},
        {}.get,
        lambda step, steps, loss: seen.append((step, steps)),
    )

    assert engine.batches[0] != engine.batches[1]
    assert seen == [(step, 6) for step in range(1, 7)]
    assert result.upload is not None
    assert not np.array_equal(engine.weights[1]["fc.bias"], result.upload["fc.bias"])


def test_a_kept_set_is_used_where_there_is_one_and_the_download_before(engine: RecordingEngine) -> None:
    plan = fedavg_plan()
    plan.start[0].source.kept = "mine"
    run(engine, plan)
    run(engine, plan, kept={"mine": ONES})

    np.testing.assert_array_equal(engine.weights[0]["fc.bias"], [0, 0])
    np.testing.assert_array_equal(engine.weights[1]["fc.bias"], [1, 1])


def test_the_first_rule_that_selects_a_tensor_counts(engine: RecordingEngine) -> None:
    plan = fedavg_plan()
    del plan.start[:]
    plan.start.add(source=assignment_pb2.SetSource(download="other")).tensors.names.append("fc.bias")
    plan.start.add(source=assignment_pb2.SetSource(download="global"))
    run(engine, plan, downloads={"global": ZEROS, "other": ONES})

    np.testing.assert_array_equal(engine.weights[0]["fc.bias"], [1, 1])
    np.testing.assert_array_equal(engine.weights[0]["fc.weight"], np.zeros((2, 3)))


def test_references_are_the_start_or_a_set(tmp_path: Path) -> None:
    engine = RecordingEngine(make_bundle(tmp_path / "b", with_reference=True))
    plan = fedavg_plan()
    plan.start[0].source.download = "other"
    plan.references.add(name="global").start = True
    run(engine, plan, downloads={"global": ZEROS, "other": ONES})
    plan.references[0].set.download = "global"
    run(engine, plan, downloads={"global": ZEROS, "other": ONES})

    np.testing.assert_array_equal(engine.references[0]["global"]["fc.bias"], [1, 1])
    np.testing.assert_array_equal(engine.references[1]["global"]["fc.bias"], [0, 0])


def test_label_counts_can_be_a_reference(tmp_path: Path) -> None:
    engine = RecordingEngine(make_bundle(tmp_path / "b", with_reference=True))
    plan = fedavg_plan()
    plan.references.add(name="global").label_counts = True
    run(engine, plan, train=5)

    # Labels alternate from 0: three of class 0, two of class 1.
    np.testing.assert_array_equal(engine.references[0]["global"][LABEL_COUNTS], [3, 2])


def test_what_is_kept_and_uploaded_is_selected_from_the_trained_tensors(engine: RecordingEngine) -> None:
    plan = fedavg_plan()
    plan.upload.tensors.names.append("fc.bias")
    plan.keep.add(set="head").tensors.names.append("fc.weight")
    result = run(engine, plan)

    assert result.upload is not None
    assert list(result.upload) == ["fc.bias"]
    assert list(result.keep["head"]) == ["fc.weight"]
    assert result.upload["fc.bias"].any()


def test_an_evaluation_phase_trains_and_sends_nothing(engine: RecordingEngine) -> None:
    plan = assignment_pb2.LocalPlan(start=fedavg_plan().start, evaluation=assignment_pb2.EvaluationPlan(at_start=True))
    result = run(engine, plan, train=5)

    assert result.upload is None
    assert (result.num_examples, result.keep, engine.batches) == (0, {}, [])
    assert result.evaluations[START].count == 3
    # Zero weights: log 2 for each of three photos.
    assert result.evaluations[START].loss == pytest.approx(3 * np.log(2))


def test_stages_that_are_thrown_away_start_where_the_pass_starts_and_change_nothing_else(
    engine: RecordingEngine,
) -> None:
    plan = fedavg_plan()
    plain = run(engine, plan)
    plan.evaluation.fine_tuning.add(program="step", epochs=2)
    tuned = run(engine, plan, downloads={"global": ZEROS})
    thrown_away, trained = engine.batches[1:]

    assert engine.weights[1] is engine.weights[2]
    # Ten photos in batches of four: three steps an epoch. Their order is that of a stage behind those of the pass.
    entries = photo_set(10).entries
    order = sorted(range(10), key=lambda row: keyed_hash.photo_rank(SEED, 1, 0, entries[row][0], 0))
    assert (len(thrown_away), len(trained)) == (6, 3)
    assert thrown_away[0] == order[:BATCH]
    assert list(tuned.evaluations) == [START, FINE_TUNED, END]
    assert tuned.evaluations[END] == plain.evaluations[END]
    assert tuned.evaluations[FINE_TUNED].loss != plain.evaluations[END].loss
    assert plain.upload is not None and tuned.upload is not None
    assert tuned.upload["fc.weight"].tobytes() == plain.upload["fc.weight"].tobytes()


def test_progress_counts_the_steps_that_are_thrown_away(engine: RecordingEngine) -> None:
    plan = fedavg_plan()
    plan.evaluation.fine_tuning.add(program="step", steps=2)
    seen: list[tuple[int, int]] = []
    local_training.execute(
        assignment_pb2.Assignment(seed=SEED, local_plan=plan),
        engine,
        PassPhotos(photo_set(10), photo_set(0), {}),
        {"global": ZEROS},
        {}.get,
        lambda step, steps, loss: seen.append((step, steps)),
    )

    assert seen == [(step, 5) for step in range(1, 6)]


def test_each_evaluation_has_a_confusion_matrix_if_asked(engine: RecordingEngine) -> None:
    plan = fedavg_plan()
    plan.statistics.add().confusion.SetInParent()
    found = run(engine, plan, test=3).evaluations
    nothing = run(engine, plan, test=0).evaluations[END]

    # Zero weights: the logits are equal, so that the first class counts. Labels 0, 1, 0.
    assert found[START].confusion == (2, 0, 1, 0)
    end = found[END].confusion
    assert end is not None
    assert (sum(end), end[0] + end[3]) == (3, found[END].correct)
    assert nothing.confusion == (0, 0, 0, 0)
    assert run(engine, fedavg_plan()).evaluations[END].confusion is None


def test_without_test_photos_the_sums_are_zero(engine: RecordingEngine) -> None:
    result = run(engine, fedavg_plan(), test=0)

    assert (result.evaluations[END].count, result.evaluations[END].loss) == (0, 0.0)


def test_class_counts_add_up_to_the_photos_asked_about(engine: RecordingEngine) -> None:
    plan = assignment_pb2.LocalPlan(start=fedavg_plan().start)
    plan.statistics.add().class_counts.SetInParent()
    asked = run(engine, plan, train=5)

    assert asked.class_counts == (3, 2)
    assert asked.num_examples == 5


def test_a_pass_that_trains_needs_a_train_photo(engine: RecordingEngine) -> None:
    with pytest.raises(PassFailed) as caught:
        run(engine, fedavg_plan(), train=0)

    assert caught.value.reason == update_pb2.FAILURE_REASON_NO_PHOTOS


def test_the_same_pass_gives_the_same_tensors(engine: RecordingEngine) -> None:
    first, second = run(engine, fedavg_plan(3)), run(engine, fedavg_plan(3))

    assert first.upload is not None and second.upload is not None
    assert first.upload["fc.weight"].tobytes() == second.upload["fc.weight"].tobytes()
    assert first.evaluations == second.evaluations


@pytest.mark.parametrize(
    ("downloads", "named"),
    [
        ({"fc.bias": ZEROS["fc.bias"]}, "downloaded set 'global' has no tensor 'fc.weight'"),
        (
            ZEROS | {"fc.bias": np.zeros(3, np.float32)},
            r"tensor 'fc.bias' is float32\[3\], the bundle has float32\[2\]",
        ),
        (ZEROS | {"fc.bias": np.zeros(2, np.int64)}, r"is int64\[2\]"),
    ],
)
def test_a_set_that_does_not_fit_the_bundle_is_named(
    engine: RecordingEngine, downloads: dict[str, Array], named: str
) -> None:
    with pytest.raises(PassFailed, match=named):
        run(engine, fedavg_plan(), downloads={"global": downloads})


def test_a_kept_set_that_must_be_there_and_is_not_is_named(engine: RecordingEngine) -> None:
    plan = fedavg_plan()
    plan.start[0].source.CopyFrom(assignment_pb2.SetSource(kept="mine"))
    with pytest.raises(PassFailed, match="nothing is kept yet under 'mine'"):
        run(engine, plan)


def test_start_rules_must_cover_every_tensor(engine: RecordingEngine) -> None:
    plan = fedavg_plan()
    plan.start[0].tensors.names.append("fc.bias")
    with pytest.raises(PassFailed, match=r"no start rule selects tensor 'fc\.weight'"):
        run(engine, plan)
