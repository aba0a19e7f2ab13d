"""Local training: execute an assignment's local plan, a pure function of the assignment, photos, downloads and state.

The plan is a short program as data; nothing here knows a method. `fedlens_proto.plan_check` refuses unknown parts of a
plan beforehand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Engine, Rows
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.training.evaluation import Evaluation, evaluate
from fedlens_edge_client.training.photo_set import PhotoSet, PreparedPhotos, public_photos, without_validation
from fedlens_edge_client.training.sources import ClientStateOf, Sources, Tensors
from fedlens_proto import keyed_hash, plans
from fedlens_proto.blob import Array
from fedlens_proto.manifest import program, select, takes_views
from fedlens_proto.slots import batch_of
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2

OnStep = Callable[[int, int, float], None]


@dataclass(frozen=True)
class TrainingResult:
    """The result of a local plan.

    Attributes:
        num_examples: Train photos that the result depends on.
        class_counts: Train photos of each class, in label order, whether requested or not.
        evaluations: By label, in the plan's order.
        keeps: New client state by name.
        uploads: Tensors to send, by name in the plan's order.
    """

    num_examples: int
    class_counts: tuple[int, ...]
    evaluations: dict[str, Evaluation]
    keeps: dict[str, Tensors]
    uploads: dict[str, Tensors]


Execute = Callable[
    [
        assignment_pb2.Assignment,
        Engine,
        PreparedPhotos,
        Mapping[str, Tensors],
        ClientStateOf,
        OnStep,
        Callable[[int, int], None],
    ],
    TrainingResult,
]
"""`execute`, or what leads to it elsewhere."""


def execute(
    assignment: assignment_pb2.Assignment,
    engine: Engine,
    photos: PreparedPhotos,
    downloads: Mapping[str, Tensors],
    client_state: ClientStateOf,
    on_step: OnStep = lambda step, steps, loss: None,
    check_amounts: Callable[[int, int], None] = lambda photos, validation: None,
) -> TrainingResult:
    """Execute a local plan that `plan_check.check` has accepted.

    Args:
        assignment: Provides the seed and the local plan.
        engine: For the assignment's bundle.
        photos: Train and test photos.
        downloads: The assignment's sets by name.
        client_state: Returns client state by name, None if there is none yet.
        on_step: Called after every step with its number from 1, the number of all steps and its loss. An exception
            that it raises ends the training.
        check_amounts: Called with the numbers of photos to train on and for validation, before anything is run; it
            may raise.

    Raises:
        AssignmentFailed: There are no photos to train on, or tensors do not fit the bundle.
        EngineError: A program failed, or gave a NaN.
    """
    plan, bundle = assignment.local_plan, engine.bundle.manifest
    train, validation = without_validation(photos.train, plan.validation_percent)
    rows = {assignment_pb2.ROWS_TRAIN: train, assignment_pb2.ROWS_VALIDATION: validation}
    trains = plans.reads_rows(plan, assignment_pb2.ROWS_TRAIN)
    is_counted = plans.counts_photos(plan)
    if (trains or is_counted or plans.reads_rows(plan, assignment_pb2.ROWS_VALIDATION)) and not train.entries:
        raise AssignmentFailed(update_pb2.FAILURE_REASON_NO_PHOTOS, "there is no labelled train photo")
    check_amounts(len(train), len(validation))
    if plans.reads_rows(plan, assignment_pb2.ROWS_PUBLIC):
        rows[assignment_pb2.ROWS_PUBLIC] = public_photos(engine.bundle)
    counts = np.bincount(train.rows.labels, minlength=len(bundle.class_names))
    values: dict[str, Tensors] = {}
    sources = Sources(downloads, client_state, values, counts.astype(np.float32))
    run = _Run(assignment, engine, rows, sources, values, on_step)
    for index, instruction in enumerate(plan.instructions):
        values[instruction.value] = run.make(instruction)
        read = plans.still_read(plan, index)
        for name in values.keys() - read:
            del values[name]
    evaluations = {
        each.label: run.evaluate(each, photos.test.rows, plans.asks(plan, "confusion")) for each in plan.evaluations
    }

    def selected(name: str, selector: assignment_pb2.TensorSelector) -> Tensors:
        tensors = values[name]
        chosen = {tensor.name for tensor in select(bundle.tensors, selector)}
        return tensors if not selector.ByteSize() else {key: tensors[key] for key in tensors if key in chosen}

    return TrainingResult(
        num_examples=len(train) if is_counted else 0,
        class_counts=tuple(int(count) for count in counts),
        evaluations=evaluations,
        keeps={keep.state: selected(keep.value, keep.tensors) for keep in plan.keeps},
        uploads={upload.name: selected(upload.value, upload.tensors) for upload in plan.uploads},
    )


def assemble(
    instruction: assignment_pb2.Instruction, bundle: manifest_pb2.Manifest, sources: Sources
) -> dict[str, Array]:
    """The weights that an `assemble` instruction makes; errors as `Sources.take`."""
    made: dict[str, Array] = {}
    for use in plans.instruction_uses(instruction, bundle):
        made |= sources.take(use) or {}
    return made


def batches(
    photos: PhotoSet,
    seed: bytes,
    training: int,
    train: assignment_pb2.Train,
    batch: int,
    last_batch: manifest_pb2.LastBatch,
) -> Iterator[NDArray[np.int64]]:
    """The rows of each step of a training, int64 [n], 1 <= n <= batch.

    Keyed hashes order the photos of an epoch; `training` counts the plan's trainings from 0. The last batch of an epoch
    is short or, with `LAST_BATCH_FILLED`, filled cyclically from the start of the epoch's order.
    """
    left = plans.steps(train, len(photos), batch)
    fills = last_batch == manifest_pb2.LAST_BATCH_FILLED
    epoch = 0
    while left:
        ranks = keyed_hash.photo_ranks(seed, training, epoch, photos.entries)
        order = np.array(sorted(range(len(ranks)), key=ranks.__getitem__), np.int64)
        for first in range(0, len(order), batch)[:left]:
            rows = order[first : first + batch]
            if fills and len(rows) < batch:
                rows = np.concatenate([rows, np.resize(order, batch - len(rows))])
            yield rows
            left -= 1
        epoch += 1


@dataclass
class _Run:
    """The state of one run of a plan."""

    assignment: assignment_pb2.Assignment
    engine: Engine
    rows: Mapping[assignment_pb2.Rows, PhotoSet]
    sources: Sources
    values: Mapping[str, Tensors]
    on_step: OnStep
    _trainings: int = field(default=0, init=False)
    _steps_done: int = field(default=0, init=False)
    _viewed: Rows | None = field(default=None, init=False)  # a photo's views are the same in all of a plan

    def make(self, instruction: assignment_pb2.Instruction) -> Tensors:
        """The value of an instruction."""
        match instruction.WhichOneof("kind"):
            case "assemble":
                return assemble(instruction, self._bundle, self.sources)
            case "train":
                return self._train(instruction.train)
            case _:
                derive = instruction.derive
                over = self.rows[derive.rows].rows if derive.rows else None
                return self.engine.derive(
                    derive.program, _hyper(derive.hyper_values), self._references(derive.program, derive.bindings), over
                )

    def evaluate(self, evaluation: assignment_pb2.Evaluation, test: Rows, with_confusion: bool) -> Evaluation:
        """The sums of one evaluation over the test photos."""
        name = evaluation.program or plans.PREDICT
        references = self._references(name, evaluation.bindings)
        predict = partial(self.engine.predict, self.values[evaluation.value], program=name, references=references)
        return evaluate(predict, test, len(self._bundle.class_names), with_confusion=with_confusion)

    @property
    def _bundle(self) -> manifest_pb2.Manifest:
        return self.engine.bundle.manifest

    def _train(self, train: assignment_pb2.Train) -> Tensors:
        photos, seed, number = self.rows[train.rows], self.assignment.seed, self._trainings
        self._trainings += 1
        rows = photos.rows
        if takes_views(program(self._bundle, train.program), self._bundle):
            rows = self._viewed = self._viewed or photos.training_rows(self.engine, seed)
        total = self._steps()

        def count(loss: float) -> None:
            self._steps_done += 1
            self.on_step(self._steps_done, total, loss)

        return self.engine.train(
            train.program,
            self.values[train.start],
            rows,
            batches(photos, seed, number, train, self._batch(train), self._bundle.last_batch),
            _hyper(train.hyper_values),
            self._references(train.program, train.bindings),
            count,
            partial(keyed_hash.step_uniforms, seed, number),
        )

    def _steps(self) -> int:
        """The number of steps of the whole plan."""
        found = [each.train for each in self.assignment.local_plan.instructions if each.HasField("train")]
        return sum(plans.steps(train, len(self.rows[train.rows]), self._batch(train)) for train in found)

    def _batch(self, train: assignment_pb2.Train) -> int:
        return batch_of(program(self._bundle, train.program))

    def _references(self, name: str, bindings: Sequence[assignment_pb2.Binding]) -> dict[str, Tensors]:
        """The tensors of each reference that is bound to something."""
        uses = plans.bound(program(self._bundle, name), bindings, self._bundle)
        taken = {binding.reference: self.sources.take(use) for binding, use in zip(bindings, uses, strict=True)}
        return {reference: tensors for reference, tensors in taken.items() if tensors is not None}


def _hyper(values: Sequence[assignment_pb2.HyperValue]) -> dict[str, float]:
    return {hyper.name: hyper.value for hyper in values}
