"""The torch engine: what comes out, and what bad use it names."""

import math
import shutil
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedlens_edge_client.engines import BadInput, BundleUnusable, Engine, NonFinite, Rows
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.training.evaluation import Evaluation, evaluate
from fedlens_export.models import whole_models
from fedlens_export.network import CENTRED
from fedlens_proto import blob
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import manifest_pb2 as pb

Weights = dict[str, blob.Array]


def rows_of(shape: tuple[int, ...], count: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return Rows(rng.random((count, *shape), dtype=np.float32), rng.integers(0, 3, count))


def initial(engine: Engine) -> Weights:
    return dict(engine.bundle.initial())


def stepped(engine: Engine, **changes: Any) -> Weights:
    """The bundle's weights after a step on four photos, unless an argument of `train` is another."""
    start = initial(engine)
    inputs = program(engine.bundle.manifest, "step").inputs
    shape = next(slot.shape[1:] for slot in inputs if slot.kind == pb.SLOT_KIND_INPUT)
    given: dict[str, Any] = {
        "program": "step",
        "weights": start,
        "rows": rows_of(tuple(shape), 4),
        "batches": [np.arange(4)],
        "hyper": {},
        "references": {"global": start},
    }
    return engine.train(**(given | changes))


def evaluated(engine: Engine, weights: Weights, rows: Rows) -> Evaluation:
    return evaluate(partial(engine.predict, weights), rows, len(engine.bundle.manifest.class_names))


def whole_batches(count: int, size: int = 4) -> list[NDArray[np.int64]]:
    return [np.arange(start, min(start + size, count)) for start in range(0, count, size)]


def test_training_a_cnn_equals_a_plain_torch_loop(cnn: TorchEngine) -> None:
    rows = rows_of((3, 16, 16), 10)
    batches = whole_batches(10) * 3
    losses: list[float] = []
    model = whole_models.build("lenet5", 3, 16, seed=0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.001)
    hyper = {"lr_extractor": 0.05, "lr_classifier": 0.05, "momentum": 0.9, "weight_decay": 0.001}

    trained = cnn.train("step", initial(cnn), rows, batches, hyper, {}, losses.append)

    expected = []
    for batch in batches:
        optimiser.zero_grad()
        logits = model(CENTRED(torch.from_numpy(rows.inputs[batch])))
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(rows.labels[batch]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-4)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(trained[name], parameter.detach().numpy(), rtol=1e-3, atol=1e-5)


def test_a_short_batch_counts_its_real_rows_alone(head: TorchEngine) -> None:
    rows, reference = rows_of((12,), 6), {"global": initial(head)}
    alone = Rows(rows.inputs[4:], rows.labels[4:])

    # What an earlier, longer batch left behind the two rows must not show.
    after = head.train("step", initial(head), rows, [np.arange(4)], {}, reference)
    two = head.train("step", after, rows, [np.array([4, 5])], {}, reference)
    again = head.train("step", after, alone, [np.arange(2)], {}, reference)

    assert all(np.array_equal(two[name], again[name]) for name in two)


def test_training_twice_gives_the_same_bytes_and_modifies_nothing(head: TorchEngine) -> None:
    rows = rows_of((12,), 10)
    start, inputs = initial(head), rows.inputs.copy()
    before = {name: array.copy() for name, array in start.items()}

    first, second = (stepped(head, weights=start, rows=rows, batches=whole_batches(10)) for _ in range(2))

    assert {n: a.tobytes() for n, a in first.items()} == {n: a.tobytes() for n, a in second.items()}
    assert all(np.array_equal(start[name], before[name]) for name in start)
    assert np.array_equal(rows.inputs, inputs)
    assert not np.array_equal(first["extractor.weight"], start["extractor.weight"])


def test_weights_that_the_caller_owns_and_may_write_are_not_modified_either(cnn: TorchEngine) -> None:
    mine = {name: np.array(array) for name, array in initial(cnn).items()}
    before = {name: array.copy() for name, array in mine.items()}

    stepped(cnn, weights=mine, batches=whole_batches(4) * 2)

    assert all(np.array_equal(mine[name], before[name]) for name in mine)


def test_no_batches_give_the_weights_back_as_new_arrays(cnn: TorchEngine) -> None:
    start = initial(cnn)

    trained = stepped(cnn, batches=[])

    assert all(np.array_equal(trained[name], start[name]) for name in start)
    assert all(array.flags.writeable for array in trained.values())


def test_a_learning_rate_of_zero_freezes_a_role(head: TorchEngine) -> None:
    start = initial(head)

    trained = stepped(head, rows=rows_of((12,), 8), batches=whole_batches(8), hyper={"lr_extractor": 0.0})

    assert trained["extractor.weight"].tobytes() == start["extractor.weight"].tobytes()
    assert not np.array_equal(trained["classifier.weight"], start["classifier.weight"])


def test_the_reference_pulls(head: TorchEngine) -> None:
    # A pull of 1000 towards 5 outweighs every gradient: Adam's first steps have the size of the learning rate.
    start = initial(head)
    far = {name: np.full_like(array, 5) for name, array in start.items()}

    trained = stepped(head, hyper={"mu": 1000.0, "lr_classifier": 0.125}, references={"global": far})

    np.testing.assert_allclose(trained["classifier.weight"], start["classifier.weight"] + 0.125, atol=1e-4)


def test_batch_norm_statistics_come_back_counted(norm: TorchEngine) -> None:
    # Momentum 0.1 from statistics 0 and 1: running mean = 0.1 * mean of the batch.
    rows = rows_of((3, 2, 2), 4)

    trained = stepped(norm, rows=rows)

    np.testing.assert_allclose(trained["norm.running_mean"], 0.1 * rows.inputs.reshape(4, 12).mean(0), rtol=1e-5)
    counted = trained["norm.num_batches_tracked"]
    assert counted.dtype == np.int64
    assert (counted.shape, int(counted)) == ((), 1)


def test_evaluation_sums_over_rows_in_any_number_of_batches(head: TorchEngine) -> None:
    # With all weights 0 and biases (0, ln 2, 0) every row has probabilities 1/4, 1/2, 1/4.
    weights = {name: np.zeros_like(array) for name, array in initial(head).items()}
    weights["classifier.bias"] = np.array([0, math.log(2), 0], np.float32)
    labels = np.array([0, 1, 1, 2, 1, 0, 1])

    found = evaluated(head, weights, Rows(np.ones((7, 12), np.float32), labels))

    assert (found.count, found.correct) == (7, 4)
    assert found.loss == pytest.approx(4 * math.log(2) + 3 * math.log(4), rel=1e-6)


def test_no_rows_evaluate_to_nothing(head: TorchEngine) -> None:
    nothing = Rows(np.empty((0, 12), np.float32), np.empty(0, np.int64))

    assert evaluated(head, initial(head), nothing) == Evaluation(0, 0, 0.0)


def test_embedding_a_photo_gives_its_features(head: TorchEngine) -> None:
    # The backbone averages quarters: the upper left one of the red channel holds 1, all else 0.
    photo = np.zeros((1, 3, 8, 8), np.float32)
    photo[0, 0, :4, :4] = 1

    np.testing.assert_allclose(head.embed(photo), [1] + [0] * 11, atol=1e-6)


def test_an_exception_in_the_callback_cancels_the_training(cnn: TorchEngine) -> None:
    class Cancelled(Exception):
        pass

    steps: list[float] = []

    def after_two(loss: float) -> None:
        steps.append(loss)
        if len(steps) == 2:
            raise Cancelled

    def endless() -> Iterator[NDArray[np.int64]]:
        while True:
            yield np.arange(4)

    with pytest.raises(Cancelled):
        stepped(cnn, batches=endless(), on_step=after_two)

    assert len(steps) == 2
    assert torch.is_grad_enabled()


BAD_WEIGHTS: list[tuple[Callable[[Weights], Weights], str]] = [
    (lambda w: {n: w[n] for n in w if n != "extractor.bias"}, "tensor 'extractor.bias' is missing from the weights"),
    (lambda w: w | {"extractor.bias": np.zeros(7, np.float32)}, r"float32\[7\], the bundle takes float32\[512\]"),
    (lambda w: w | {"extractor.bias": np.zeros(512)}, r"found float64\[512\]"),
]


@pytest.mark.parametrize(("change", "reason"), BAD_WEIGHTS)
def test_wrong_weights_are_named(head: TorchEngine, change: Callable[[Weights], Weights], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        stepped(head, weights=change(initial(head)))
    with pytest.raises(BadInput, match=reason):
        evaluated(head, change(initial(head)), rows_of((12,), 4))


FEATURES = np.zeros((4, 12), np.float32)
BAD_ARGUMENTS: list[tuple[str, Any, str]] = [
    ("hyper", {"learning_rate": 0.1}, "'learning_rate' is unknown; the bundle has lr_extractor, lr_classifier, beta1"),
    ("hyper", {"lr_classifier": -0.1}, r"'lr_classifier' is -0.1; allowed are 0.0 to 100.0"),
    ("hyper", {"beta1": 1.0}, "'beta1' is 1.0; allowed are 0.0 to 0.9999"),
    ("hyper", {"mu": math.nan}, "'mu' is nan"),
    ("references", {}, "reference 'global' is missing"),
    ("references", {"global": {}}, "'classifier.bias' is missing from reference 'global'"),
    ("rows", Rows(FEATURES, np.array([0, 1, 2, 3])), "label 3 is not one of 0 to 2"),
    ("rows", Rows(FEATURES, np.array([0, 1, 2, -1])), "label -1 is not one of 0 to 2"),
    (
        "rows",
        Rows(FEATURES, np.zeros(3, np.int64)),
        r"inputs: found float32\[4, 12\], the bundle takes float32\[3, 12\]",
    ),
    ("rows", Rows(FEATURES[:, :5], np.zeros(4, np.int64)), r"found float32\[4, 5\]"),
    ("rows", Rows(FEATURES.astype(np.float64), np.zeros(4, np.int64)), "found float64"),  # type: ignore[arg-type]
    ("rows", Rows(FEATURES, np.zeros(4, np.int32)), "labels: found int32"),  # type: ignore[arg-type]
    ("batches", [np.array([], np.int64)], "a batch of 0 rows; the bundle takes 1 to 4"),
    ("batches", [np.array([0, 1, 2, 3, 0])], "a batch of 5 rows"),
    ("batches", [np.array([0, 4])], "a row outside 0 to 3"),
    ("batches", [np.array([-1])], "a row outside 0 to 3"),
]


@pytest.mark.parametrize(("argument", "value", "reason"), BAD_ARGUMENTS)
def test_wrong_arguments_are_named(head: TorchEngine, argument: str, value: Any, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        stepped(head, **{argument: value})


def test_inputs_of_another_shape_are_named_when_predicting(head: TorchEngine) -> None:
    with pytest.raises(BadInput, match=r"found float32\[4, 5\], the bundle takes float32\[4, 12\]"):
        head.predict(initial(head), FEATURES[:, :5])


def test_with_trainable_batch_norm_every_batch_must_be_full(norm: TorchEngine) -> None:
    with pytest.raises(BadInput, match="a batch of 3 rows; the bundle takes exactly 4"):
        stepped(norm, batches=[np.arange(3)])


def test_evaluation_with_batch_norm_takes_any_number_of_rows(norm: TorchEngine) -> None:
    assert evaluated(norm, initial(norm), rows_of((3, 2, 2), 5)).count == 5


def test_training_that_diverges_says_at_which_step(cnn: TorchEngine) -> None:
    with pytest.raises(NonFinite, match=r"the loss of step \d+ is (nan|inf)"):
        stepped(cnn, batches=[np.arange(4)] * 50, hyper={"lr_extractor": 100.0, "lr_classifier": 100.0})


def test_weights_that_overflow_in_the_last_step_are_not_given_out(cnn: TorchEngine) -> None:
    # The bias makes class 0 certain, so the loss is 0; decay moves it by 100 * 1 * 3e38, which float32 cannot hold.
    weights = {**initial(cnn), "fc3.bias": np.array([3e38, 0, 0], np.float32)}
    rows = Rows(rows_of((3, 16, 16), 4).inputs, np.zeros(4, np.int64))

    with pytest.raises(NonFinite, match=r"tensor 'fc3\.bias' holds a NaN or an infinity after training"):
        stepped(cnn, weights=weights, rows=rows, hyper={"lr_classifier": 100.0, "weight_decay": 1.0})


def test_logits_that_are_not_finite_are_no_evaluation(head: TorchEngine) -> None:
    weights = {name: np.full_like(array, 3e38) for name, array in initial(head).items()}

    with pytest.raises(NonFinite, match="logits"):
        evaluated(head, weights, rows_of((12,), 4))


def test_a_photo_of_another_size_cannot_be_embedded(head: TorchEngine) -> None:
    with pytest.raises(
        BadInput, match=r"the photo: found float32\[1, 3, 9, 9\], the bundle takes float32\[1, 3, 8, 8\]"
    ):
        head.embed(np.zeros((1, 3, 9, 9), np.float32))


def test_a_photo_with_a_nan_gives_no_features(head: TorchEngine) -> None:
    with pytest.raises(NonFinite, match="features"):
        head.embed(np.full((1, 3, 8, 8), np.nan, np.float32))


def test_a_whole_model_embeds_nothing(cnn: TorchEngine) -> None:
    with pytest.raises(BadInput, match="no frozen backbone"):
        cnn.embed(np.zeros((1, 3, 16, 16), np.float32))


def test_an_unknown_program_is_refused(cnn: TorchEngine) -> None:
    with pytest.raises(BundleUnusable, match=r"'collect' cannot be used: .* it has step, predict"):
        stepped(cnn, program="collect")


def test_a_program_that_is_no_step_is_refused(cnn: TorchEngine) -> None:
    with pytest.raises(BundleUnusable, match="'predict' has 0 slots of kind SLOT_KIND_LOSS"):
        stepped(cnn, program="predict")


def copied(bundle: Bundle, folder: Path) -> Bundle:
    shutil.copytree(bundle.folder, folder)
    return Bundle.open(folder)


def test_a_damaged_program_is_not_loaded(head_bundle: Bundle, tmp_path: Path) -> None:
    bundle = copied(head_bundle, tmp_path / "bundle")
    path = bundle.program_file("predict", pb.PROGRAM_FORMAT_PT2)
    path.write_bytes(path.read_bytes().replace(b"torch.ops.aten.relu.default", b"torch.ops.aten.RELU.default"))

    with pytest.raises(BundleUnusable, match="program 'predict' cannot be used: program refused"):
        evaluated(TorchEngine(bundle), initial(TorchEngine(bundle)), rows_of((12,), 4))


def test_what_is_missing_is_told_without_where_it_should_be(head_bundle: Bundle, tmp_path: Path) -> None:
    # The text goes to the server, and a path may hold its owner's name.
    bundle = copied(head_bundle, tmp_path / "bundle")
    bundle.program_file("predict", pb.PROGRAM_FORMAT_PT2).unlink()

    with pytest.raises(BundleUnusable, match=r"program 'predict' cannot be read: No such file or directory$"):
        evaluated(TorchEngine(bundle), initial(TorchEngine(bundle)), rows_of((12,), 4))


def test_a_program_with_other_slots_than_its_manifest_says_is_refused(head_bundle: Bundle) -> None:
    manifest = pb.Manifest.FromString(head_bundle.raw)
    manifest.programs[1].inputs[0].shape[0] = 511
    lying = Bundle(manifest=manifest, raw=b"", folder=head_bundle.folder)

    with pytest.raises(BundleUnusable, match=r"inputs hold torch.float32\[3\] where its manifest says"):
        TorchEngine(lying).train("step", initial(TorchEngine(head_bundle)), rows_of((12,), 4), [], {}, {})


def test_a_program_with_fewer_slots_than_its_manifest_says_is_refused(head_bundle: Bundle) -> None:
    manifest = pb.Manifest.FromString(head_bundle.raw)
    del manifest.programs[1].outputs[0]
    lying = Bundle(manifest=manifest, raw=b"", folder=head_bundle.folder)

    with pytest.raises(BundleUnusable, match="outputs, its manifest says"):
        TorchEngine(lying).train("step", initial(TorchEngine(head_bundle)), rows_of((12,), 4), [], {}, {})


def test_a_program_that_contradicts_itself_ends_as_an_error_of_the_bundle(head_bundle: Bundle, tmp_path: Path) -> None:
    # relu is given an argument of another operator; the sizes that the file claims are as they were.
    bundle = copied(head_bundle, tmp_path / "bundle")
    path = bundle.program_file("predict", pb.PROGRAM_FORMAT_PT2)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = "program/models/model.json"
    members[name] = members[name].replace(b"torch.ops.aten.relu.default", b"torch.ops.aten.t.default")
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)

    with pytest.raises(BundleUnusable, match=r"program 'predict' cannot be used: .*tensor 'relu' is .*describes it as"):
        evaluated(TorchEngine(bundle), initial(TorchEngine(bundle)), rows_of((12,), 4))


def test_torch_runs_on_one_thread(head: TorchEngine) -> None:
    torch.set_num_threads(2)

    TorchEngine(head.bundle)

    assert torch.get_num_threads() == 1
