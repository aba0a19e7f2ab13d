"""Local training: execute an assignment's local plan, a pure function of the assignment, photos, downloads and state.

The plan is data; nothing here knows a method. `requirements.py` refuses unknown parts of a plan beforehand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Engine
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.training.evaluation import Evaluation, evaluate
from fedlens_edge_client.training.photo_set import PhotoSet, PreparedPhotos
from fedlens_edge_client.training.sources import Sources, Tensors
from fedlens_proto import keyed_hash, manifest
from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2

OnStep = Callable[[int, int, float], None]


@dataclass(frozen=True)
class TrainingResult:
    """The result of a local plan.

    Attributes:
        num_examples: Train photos that the result depends on.
        class_counts: Train photos of each class, in label order, whether requested or not.
        evaluations: By moment.
        keep: New client state by name.
        upload: Tensors to send; None unless requested.
    """

    num_examples: int
    class_counts: tuple[int, ...]
    evaluations: dict[update_pb2.EvaluationMoment, Evaluation]
    keep: dict[str, dict[str, Array]]
    upload: dict[str, Array] | None


def execute(
    assignment: assignment_pb2.Assignment,
    engine: Engine,
    photos: PreparedPhotos,
    downloads: Mapping[str, Tensors],
    client_state: Callable[[str], Tensors | None],
    on_step: OnStep = lambda step, steps, loss: None,
) -> TrainingResult:
    """Execute a local plan that `requirements.check` has accepted.

    Args:
        assignment: Provides the seed and the local plan.
        engine: For the assignment's bundle.
        photos: Train and test photos.
        downloads: The assignment's sets by name.
        client_state: Returns client state by name, None if there is none yet.
        on_step: Called after every step with its number from 1, the number of all steps and its loss. An exception
            that it raises ends the training.

    Raises:
        AssignmentFailed: There are no photos to train on, or tensors do not fit the bundle.
        EngineError: A program failed, or gave a NaN.
    """
    plan = assignment.local_plan
    trains = bool(plan.stages or plan.evaluation.fine_tuning)
    statistics = {statistic.WhichOneof("kind") for statistic in plan.statistics}
    counts_labels = not statistics.isdisjoint({"class_counts", "label_distribution"})
    if (trains or counts_labels) and not photos.train.entries:
        raise AssignmentFailed(update_pb2.FAILURE_REASON_NO_PHOTOS, "there is no labelled train photo")
    bundle = engine.bundle.manifest
    sources = Sources(bundle, downloads, client_state)
    start = sources.start(plan.start)
    counts = np.bincount(photos.train.rows.labels, minlength=len(bundle.class_names))
    references = {binding.name: sources.reference(binding, start, counts) for binding in plan.references}
    train = _training(assignment, engine, photos.train, references, on_step)
    evaluations = {}

    def measure(moment: update_pb2.EvaluationMoment, weights: Tensors) -> None:
        evaluations[moment] = evaluate(engine, weights, photos.test.rows, with_confusion="confusion" in statistics)

    if plan.evaluation.at_start:
        measure(update_pb2.EVALUATION_MOMENT_START, start)
    if plan.evaluation.fine_tuning:
        # Numbered after the plan's stages, so that they take the photos in another order.
        fine_tuned = train(start, plan.evaluation.fine_tuning, len(plan.stages))
        measure(update_pb2.EVALUATION_MOMENT_FINE_TUNED, fine_tuned)
    trained = train(start, plan.stages, 0)
    if plan.evaluation.at_end:
        measure(update_pb2.EVALUATION_MOMENT_END, trained)
    return TrainingResult(
        num_examples=len(photos.train) if plan.stages or counts_labels else 0,
        class_counts=tuple(int(count) for count in counts),
        evaluations=evaluations,
        keep={keep.set: _selected(trained, bundle, keep.tensors) for keep in plan.keep},
        upload=_selected(trained, bundle, plan.upload.tensors) if plan.HasField("upload") else None,
    )


def batches(
    photos: PhotoSet, seed: bytes, stage_index: int, stage: assignment_pb2.Stage, bundle: manifest_pb2.Manifest
) -> Iterator[NDArray[np.int64]]:
    """The rows of each step of a stage, int64 [n], 1 <= n <= batch.

    Keyed hashes order the photos of an epoch. The last batch of an epoch is short or, with `LAST_BATCH_FILLED`, filled
    cyclically from the start of the epoch's order.
    """
    left = steps_of(stage, len(photos), bundle.batch)
    fills = bundle.last_batch == manifest_pb2.LAST_BATCH_FILLED
    epoch = 0
    while left:
        ranks = keyed_hash.photo_ranks(seed, stage_index, epoch, photos.entries)
        order = np.array(sorted(range(len(ranks)), key=ranks.__getitem__), np.int64)
        for first in range(0, len(order), bundle.batch)[:left]:
            batch = order[first : first + bundle.batch]
            if fills and len(batch) < bundle.batch:
                batch = np.concatenate([batch, np.resize(order, bundle.batch - len(batch))])
            yield batch
            left -= 1
        epoch += 1


def steps_of(stage: assignment_pb2.Stage, num_examples: int, batch: int) -> int:
    """The number of steps of a stage."""
    return stage.steps if stage.HasField("steps") else stage.epochs * -(-num_examples // batch)


def _training(
    assignment: assignment_pb2.Assignment,
    engine: Engine,
    photos: PhotoSet,
    references: Mapping[str, Tensors],
    on_step: OnStep,
) -> Callable[[dict[str, Array], Sequence[assignment_pb2.Stage], int], dict[str, Array]]:
    """A function that runs stages, numbered from its third argument on, starting from the weights in its first."""
    bundle, plan = engine.bundle.manifest, assignment.local_plan
    rows = photos.training_rows(engine, assignment.seed)
    total = sum(steps_of(stage, len(photos), bundle.batch) for stage in (*plan.stages, *plan.evaluation.fine_tuning))
    done = 0

    def count(loss: float) -> None:
        nonlocal done
        done += 1
        on_step(done, total, loss)

    def train(weights: dict[str, Array], stages: Sequence[assignment_pb2.Stage], first: int) -> dict[str, Array]:
        for index, stage in enumerate(stages, start=first):
            weights = engine.train(
                stage.program,
                weights,
                rows,
                batches(photos, assignment.seed, index, stage, bundle),
                {hyper.name: hyper.value for hyper in stage.hyper_values},
                references,
                count,
            )
        return weights

    return train


def _selected(
    tensors: Tensors, bundle: manifest_pb2.Manifest, selector: assignment_pb2.TensorSelector
) -> dict[str, Array]:
    return {tensor.name: tensors[tensor.name] for tensor in manifest.select(bundle.tensors, selector)}
