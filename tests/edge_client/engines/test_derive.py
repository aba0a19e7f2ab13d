"""Programs that derive, predict with references, and train on public rows, by both engines and in a child."""

from collections.abc import Iterator
from math import log
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from fedlens_edge_client.engines import BadInput, Engine, NonFinite, Rows
from fedlens_edge_client.engines.child.child import Child
from fedlens_edge_client.engines.child.engine import ChildEngine
from fedlens_edge_client.engines.choice import EngineName, make_engine
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models.classified import Classified
from fedlens_proto import slots
from fedlens_proto.blob import Array, Blob
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.phone_bundles import BATCH, PUBLIC_ROWS, deriving_bundle

Tensors = dict[str, Array]
ROWS = 70
"""More than one batch of 64, the last one short."""


@pytest.fixture(
    scope="module",
    params=[
        *(EngineName.TORCH, "child"),
        # The first of these tests waits for the export of the phone's programs.
        pytest.param(EngineName.EXECUTORCH, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def engine(
    request: pytest.FixtureRequest, deriving: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    if request.param == EngineName.TORCH:
        yield make_engine(request.param, deriving)
    elif request.param == "child":
        child = Child(pb.PROGRAM_FORMAT_PT2)
        yield ChildEngine(deriving, pb.PROGRAM_FORMAT_PT2, lambda: child)
        child.end()
    else:
        pytest.importorskip("executorch")
        yield make_engine(request.param, deriving_bundle(tmp_path_factory.mktemp("phone")))


def model(**changed: Any) -> Tensors:
    """Weights of the bundle: features are the ReLU of the inputs, and all logits are 0."""
    found = {
        "extractor.weight": np.eye(3),
        "extractor.bias": np.zeros(3),
        "classifier.weight": np.zeros((2, 3)),
        "classifier.bias": np.zeros(2),
    }
    found |= {name.replace("_", "."): np.array(value) for name, value in changed.items()}
    return {name: array.astype(np.float32) for name, array in found.items()}


def rows_of(count: int) -> Rows:
    """Rows (i, -1, 1) of class 0, and after 20 of them of class 1."""
    inputs = np.ones((count, 3), np.float32)
    inputs[:, 0], inputs[:, 1] = np.arange(count), -1
    return Rows(inputs, np.where(np.arange(count) < 20, 0, 1))


def table(**tensors: Any) -> Tensors:
    return {name: np.array(value, np.float32) for name, value in tensors.items()}


@pytest.mark.slow
def test_sums_go_from_batch_to_batch_and_absent_candidates_count_nothing(engine: Engine) -> None:
    # With a bias of ln 3 for class 1 its probability is 3/4: photos of class 0 lose ln 4, those of class 1 ln 4/3.
    biased = model(classifier_bias=[0, log(3)])

    found = engine.derive("compare", {}, {"candidate-0": biased, "candidate-1": model()}, rows_of(ROWS))

    expected = np.array([20 * log(4) + 50 * log(4 / 3), 70 * log(2), 70e30])
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)
    # 50 photos of class 1 for the biased one, 20 of class 0 for the other.
    assert found["vote"].tolist() == [50, 20, 0]
    assert (found["count"].shape, float(found["count"])) == ((), 70)
    assert float(found["base"]) == pytest.approx(70e30)


def test_equal_candidates_are_chosen_by_their_order_and_nan_never(engine: Engine) -> None:
    broken = model(classifier_bias=[np.nan, 0])
    candidates = {"candidate-0": broken, "candidate-1": model(), "candidate-2": model()}

    losses = engine.derive("compare", {}, candidates, rows_of(5))
    choice = engine.derive("least", {}, {"losses": losses})
    start = engine.derive("blend", {}, {**candidates, "scores": choice})

    assert losses["vote"].tolist() == [0, 5, 0]
    assert choice["score"].tolist() == [0, 1, 0]
    assert {name: array.tolist() for name, array in start.items()} == {n: a.tolist() for n, a in model().items()}


def test_a_choice_among_nothing_fails(engine: Engine) -> None:
    losses = engine.derive("compare", {}, {"candidate-0": model(classifier_bias=[np.nan, 0])}, rows_of(5))

    with pytest.raises(NonFinite, match="tensor 'score' of program 'least' holds a NaN"):
        engine.derive("least", {}, {"losses": losses})


def test_scores_weigh_the_candidates_that_are_there(engine: Engine) -> None:
    one, five = model(extractor_bias=[1, 1, 1]), model(extractor_bias=[5, 5, 5])
    candidates = {"candidate-0": one, "candidate-1": five}

    found = engine.derive("blend", {}, {**candidates, "scores": table(score=[1, 3, 9])})

    # (1 * 1 + 3 * 5) / 4
    np.testing.assert_allclose(found["extractor.bias"], [4, 4, 4], rtol=1e-6)
    np.testing.assert_allclose(found["extractor.weight"], np.eye(3), rtol=1e-6)


def test_where_no_candidate_counts_the_base_remains(engine: Engine) -> None:
    nothing = {"scores": table(score=[0, -1, 9])}

    found = engine.derive("blend", {}, {**nothing, "candidate-1": model(), "base": model(extractor_bias=[7, 8, 9])})

    assert found["extractor.bias"].tolist() == [7, 8, 9]
    with pytest.raises(NonFinite, match="of program 'blend' holds a NaN"):
        engine.derive("blend", {}, nothing)


def test_hyper_values_and_defaults_reach_a_program_without_rows(engine: Engine) -> None:
    losses = table(loss=[1, 2, 1e30], vote=[4, 0, 0], base=0, count=4)

    default = engine.derive("importance", {}, {"losses": losses})
    told = engine.derive("importance", {"sigma": 0.25}, {"losses": losses})

    assert default["score"].tolist() == [1, np.float32(1e-4), np.float32(1e-4)]
    assert told["score"].tolist() == [1, 0.25, 0.25]


def test_a_gain_is_the_saved_loss_by_the_distance(engine: Engine) -> None:
    # The means are 2 and 1; the candidate is 2 away from the base.
    losses = table(loss=[4, 1e30, 12], vote=[0, 0, 0], base=8, count=4)
    models = {"base": model(), "candidate-0": model(extractor_bias=[0, 2, 0]), "candidate-2": model()}

    found = engine.derive("gain", {}, {**models, "losses": losses})

    # The last one is the base itself, with a greater loss: -1 / 1e-5.
    np.testing.assert_allclose(found["score"], [0.5, 0, -1e5], rtol=1e-5)


def test_an_optional_reference_that_is_not_bound_is_zero(engine: Engine) -> None:
    references = {"start": model(), "trained": model(extractor_bias=[1, 2, 3])}

    first = engine.derive("dual_update", {"alpha": 0.5}, references)
    again = engine.derive("dual_update", {"alpha": 0.5}, {**references, "dual": first})

    assert first["extractor.bias"].tolist() == [-0.5, -1, -1.5]
    assert again["extractor.bias"].tolist() == [-1, -2, -3]


def test_class_means_leave_out_padding_and_predict_by_themselves(engine: Engine) -> None:
    rows = rows_of(71)

    sums = engine.derive("class_sums", {}, {"model": model()}, rows)
    means = engine.derive("class_means", {}, {"class_sums": sums})
    logits = engine.predict(model(), rows.inputs, "predict_nearest", {"prototypes": means})

    # The ReLU of (i, -1, 1); means of 0 .. 19 and of 20 .. 70.
    np.testing.assert_allclose(means["prototypes"], np.array([[9.5, 0, 1], [45, 0, 1]]), rtol=1e-6)
    assert sums["count"].tolist() == [20, 51]
    # Half way between 9.5 and 45 is 27.25.
    assert logits.argmax(1).tolist() == [0] * 28 + [1] * 43


def test_public_rows_give_a_result_each_in_their_order(engine: Engine) -> None:
    weights = model(classifier_weight=[[0, 0, 0], [1, 0, 0]])

    found = engine.derive("predictions", {"temperature": 2.0}, {"model": weights}, rows_of(ROWS))

    # softmax(0, i / 2)
    expected = 1 / (1 + np.exp(-np.arange(ROWS) / 2))
    assert found["scores"].shape == (ROWS, 2)
    np.testing.assert_allclose(found["scores"][:, 1], expected, rtol=1e-5)


def distilled(engine: Engine, rows: Rows, teacher: NDArray[np.float32], batches: list[NDArray[np.int64]]) -> Tensors:
    return engine.train("distil", model(), rows, batches, {}, {"teacher": {"scores": teacher}})


def test_the_teachers_rows_follow_the_batch(engine: Engine) -> None:
    rows, order = rows_of(6), np.array([5, 0, 3, 1, 4, 2])
    teacher = np.stack([np.arange(6) / 6, 1 - np.arange(6) / 6], 1).astype(np.float32)
    sorted_rows = Rows(rows.inputs[order], rows.labels[order])

    found = distilled(engine, rows, teacher, [order[:4], order[4:]])
    same = distilled(engine, sorted_rows, teacher[order], [np.arange(4), np.arange(4, 6)])
    other = distilled(engine, rows, teacher[order], [order[:4], order[4:]])

    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in same.items()}
    assert not np.array_equal(found["classifier.bias"], other["classifier.bias"])


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("compare", {"rows": None}, "program 'compare' runs over rows, and there are none"),
    ("compare", {"rows": rows_of(0)}, "program 'compare' runs over rows, and there are none"),
    ("compare", {"references": {"base": {}}}, "'classifier.bias' is missing from reference 'base'"),
    ("compare", {"hyper": {"sigma": 2.0}}, r"'sigma' is 2.0; allowed are 1e-09 to 1.0"),
    ("least", {}, "program 'least' runs without rows"),
    ("least", {"rows": None}, "reference 'losses' is missing; the program needs it"),
    ("class_sums", {"references": {"model": model(extractor_bias=[1])}}, r"found float32\[1\], the bundle takes"),
    ("step", {}, "is missing from the weights"),
]


@pytest.mark.parametrize(("name", "changed", "reason"), BAD)
def test_wrong_arguments_are_named(engine: Engine, name: str, changed: dict[str, Any], reason: str) -> None:
    given: dict[str, Any] = {"hyper": {}, "references": {}, "rows": rows_of(3)}

    with pytest.raises(BadInput, match=reason):
        engine.derive(name, **(given | changed))


def test_a_teacher_for_another_number_of_rows_is_refused(engine: Engine) -> None:
    with pytest.raises(BadInput, match=r"'scores' of reference 'teacher': found float32\[5, 2\], the bundle takes"):
        distilled(engine, rows_of(6), np.zeros((5, 2), np.float32), [np.arange(4)])


def test_a_result_depends_on_nothing_but_its_arguments(engine: Engine) -> None:
    arguments: Any = ("compare", {}, {"candidate-1": model(classifier_bias=[1, 2])}, rows_of(ROWS))
    biggest = rows_of(128)

    first = engine.derive(*arguments)
    engine.derive("compare", {}, {"candidate-0": model()}, biggest)
    again = engine.derive(*arguments)

    assert {n: a.tobytes() for n, a in first.items()} == {n: a.tobytes() for n, a in again.items()}


def test_public_photos_come_as_the_features_that_clients_compute(deriving: Bundle) -> None:
    blob = Blob.open(deriving.part(deriving.manifest.public.sha256), deriving.manifest.public.sha256)

    # The mean of red is i / 255.
    np.testing.assert_allclose(blob["input"][:, 0], np.arange(PUBLIC_ROWS) / 255, atol=1e-6)
    assert deriving.manifest.public.rows == PUBLIC_ROWS == len(blob["label"])


class Drawn:
    """Uniforms that remember what was asked for."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.asked: list[tuple[int, int, int]] = []

    def __call__(self, step: int, slot: int, count: int) -> NDArray[np.float32]:
        self.asked.append((step, slot, count))
        return np.full(count, self.value, np.float32)


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    """A bundle whose step takes random numbers: features of a generator, which it draws from."""
    head = Classified(nn.Linear(3, 3), nn.Linear(3, 2))
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    training = Training(class_names=("cat", "dog"), batch=BATCH, objective="generated")
    return TorchEngine(frozen_backbone_bundle(tmp_path_factory.mktemp("engine") / "b", backbone, head, training, 8))


def generated(engine: TorchEngine, **changed: Any) -> Tensors:
    """Two steps on six rows, with a generator of ones."""
    step = program(engine.bundle.manifest, "step")
    made = {
        slots.tensor_of(slot): np.ones(tuple(slot.shape), np.float32) for slot in slots.references(step)["generator"]
    }
    references = {"label_counts": table(label_counts=[3, 3]), "generator": made}
    given: dict[str, Any] = {"references": references, "uniforms": Drawn(0.5)}
    batches = [np.arange(4), np.arange(4, 6)]
    return engine.train("step", model(), rows_of(6), batches, {}, **(given | changed))


@pytest.mark.slow
def test_each_step_draws_its_own_numbers_for_padding_too(drawing: TorchEngine) -> None:
    step = program(drawing.bundle.manifest, "step")
    (drawn,) = (slot for slot in step.inputs if slot.kind == pb.SLOT_KIND_UNIFORM)
    half, one = Drawn(0.5), Drawn(0.25)

    first, again, other = (generated(drawing, uniforms=drawn) for drawn in (half, Drawn(0.5), one))

    assert half.asked == [(step, 0, BATCH * drawn.shape[1]) for step in (0, 1)]
    assert {n: a.tobytes() for n, a in first.items()} == {n: a.tobytes() for n, a in again.items()}
    assert not np.array_equal(first["classifier.weight"], other["classifier.weight"])


def test_a_step_that_draws_needs_numbers_and_may_do_without_a_generator(drawing: TorchEngine) -> None:
    alone = {"label_counts": table(label_counts=[3, 3])}

    without, other = (generated(drawing, references=alone, uniforms=Drawn(value)) for value in (0.25, 0.5))

    assert {n: a.tobytes() for n, a in without.items()} == {n: a.tobytes() for n, a in other.items()}
    with pytest.raises(BadInput, match="program 'step' takes random numbers, and none are given"):
        generated(drawing, uniforms=None)
