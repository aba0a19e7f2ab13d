"""Executing an assignment's local pass: a pure function of the assignment, the photos and the sets it names.

The pass is data; nothing here knows a method. What is not understood is refused by name, before anything is trained.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Engine, Rows
from fedlens_edge_client.errors import PassFailed
from fedlens_edge_client.evaluation import Evaluation, evaluate
from fedlens_edge_client.photo_set import PassPhotos, PhotoSet
from fedlens_proto import keyed_hash, manifest
from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2, blob_pb2, manifest_pb2, update_pb2

# The name of the only tensor of a reference that is no set of tensors.
LABEL_COUNTS = "label_counts"

Tensors = Mapping[str, Array]
OnStep = Callable[[int, int, float], None]


@dataclass(frozen=True)
class PassResult:
    """What a pass has produced.

    Attributes:
        photo_count: Photos trained on.
        class_counts: Of them, those of each class, in label order; None if not asked for.
        evaluations: By moment.
        keep: Sets to store on the client.
        upload: Tensors to send; None if none were asked for.
    """

    photo_count: int
    class_counts: tuple[int, ...] | None
    evaluations: dict[update_pb2.EvaluationMoment, Evaluation]
    keep: dict[str, dict[str, Array]]
    upload: dict[str, Array] | None


def execute(
    assignment: assignment_pb2.Assignment,
    engine: Engine,
    photos: PassPhotos,
    downloads: Mapping[str, Tensors],
    kept: Callable[[str], Tensors | None],
    on_step: OnStep = lambda step, steps, loss: None,
) -> PassResult:
    """Do what an assignment says, which `requirements.check` has accepted.

    Args:
        assignment: Seed and local pass are used.
        engine: For the assignment's bundle.
        photos: Train and test photos.
        downloads: The assignment's sets by name.
        kept: Gives a kept set by name, None if nothing is kept yet.
        on_step: Called after every step with its number from 1, the number of all steps and its loss. What it raises
            ends the pass.

    Raises:
        PassFailed: There are no photos to train on, or a set does not fit.
        EngineError: A program could not be run, or gave a NaN.
    """
    plan = assignment.local_pass
    if plan.stages and not photos.train.entries:
        raise PassFailed(update_pb2.FAILURE_REASON_NO_PHOTOS, "there is no labelled train photo")
    bundle = engine.bundle.manifest
    sources = Sources(bundle, downloads, kept)
    start = sources.start(plan.start)
    counts = _class_counts(photos.train.rows, bundle)
    references = {binding.name: sources.reference(binding, start, counts) for binding in plan.references}
    evaluations = {}
    if plan.evaluation.at_start:
        evaluations[update_pb2.EVALUATION_MOMENT_START] = evaluate(engine, start, photos.test.rows)
    trained = _train(assignment, engine, photos.train, start, references, on_step)
    if plan.evaluation.at_end:
        evaluations[update_pb2.EVALUATION_MOMENT_END] = evaluate(engine, trained, photos.test.rows)
    asks_counts = any(ask.HasField("class_counts") for ask in plan.asks)
    return PassResult(
        photo_count=len(photos.train) if plan.stages or asks_counts else 0,
        class_counts=tuple(int(count) for count in counts) if asks_counts else None,
        evaluations=evaluations,
        keep={keep.set: _selected(trained, bundle, keep.tensors) for keep in plan.keep},
        upload=_selected(trained, bundle, plan.upload.tensors) if plan.HasField("upload") else None,
    )


def batches(
    photos: PhotoSet, seed: bytes, stage_index: int, stage: assignment_pb2.Stage, bundle: manifest_pb2.Manifest
) -> Iterator[NDArray[np.int64]]:
    """The rows of each step of a stage, int64 [n], 1 <= n <= batch.

    The photos of an epoch are sorted by keyed hash. The last batch of an epoch is short, or, if the bundle says so,
    filled cyclically from the start of the epoch's order.
    """
    left = steps_of(stage, len(photos), bundle.batch)
    fills = bundle.last_batch == manifest_pb2.LAST_BATCH_FILLED
    epoch = 0
    while left:
        ranks = [keyed_hash.photo_rank(seed, stage_index, epoch, digest, copy) for digest, copy in photos.entries]
        order = np.array(sorted(range(len(ranks)), key=ranks.__getitem__), np.int64)
        for first in range(0, len(order), bundle.batch)[:left]:
            batch = order[first : first + bundle.batch]
            if fills and len(batch) < bundle.batch:
                batch = np.concatenate([batch, np.resize(order, bundle.batch - len(batch))])
            yield batch
            left -= 1
        epoch += 1


def steps_of(stage: assignment_pb2.Stage, photo_count: int, batch: int) -> int:
    """How many steps a stage takes."""
    return stage.steps if stage.HasField("steps") else stage.epochs * -(-photo_count // batch)


def _train(
    assignment: assignment_pb2.Assignment,
    engine: Engine,
    photos: PhotoSet,
    start: dict[str, Array],
    references: Mapping[str, Tensors],
    on_step: OnStep,
) -> dict[str, Array]:
    bundle = engine.bundle.manifest
    stages = assignment.local_pass.stages
    total = sum(steps_of(stage, len(photos), bundle.batch) for stage in stages)
    done = 0

    def count(loss: float) -> None:
        nonlocal done
        done += 1
        on_step(done, total, loss)

    weights = start
    for index, stage in enumerate(stages):
        weights = engine.train(
            stage.program,
            weights,
            photos.rows,
            batches(photos, assignment.seed, index, stage, bundle),
            {hyper.name: hyper.value for hyper in stage.hyper_values},
            references,
            count,
        )
    return weights


def _class_counts(rows: Rows, bundle: manifest_pb2.Manifest) -> NDArray[np.int64]:
    return np.bincount(rows.labels, minlength=len(bundle.class_names))


def _selected(
    tensors: Tensors, bundle: manifest_pb2.Manifest, selector: assignment_pb2.TensorSelector
) -> dict[str, Array]:
    return {tensor.name: tensors[tensor.name] for tensor in manifest.select(bundle.tensors, selector)}


class Sources:
    """Where the tensors of a pass come from."""

    def __init__(
        self,
        bundle: manifest_pb2.Manifest,
        downloads: Mapping[str, Tensors],
        kept: Callable[[str], Tensors | None],
    ) -> None:
        """Downloads by name; `kept` gives None for a name under which nothing is kept yet."""
        self._bundle = bundle
        self._tensors = {tensor.name: tensor for tensor in bundle.tensors}
        self._downloads = downloads
        self._kept = kept

    def start(self, rules: Iterable[assignment_pb2.StartRule]) -> dict[str, Array]:
        """Every exchangeable tensor, each from the first rule that selects it.

        Raises:
            PassFailed: A tensor is not there, or not as the bundle has it.
        """
        weights: dict[str, Array] = {}
        for rule in rules:
            names = [tensor.name for tensor in manifest.select(self._bundle.tensors, rule.tensors)]
            weights |= self._take(rule.source, [name for name in names if name not in weights])
        if missing := self._tensors.keys() - weights.keys():
            raise PassFailed(
                update_pb2.FAILURE_REASON_UNSUPPORTED, f"no start rule selects tensor {min(missing)!r} of the bundle"
            )
        return weights

    def reference(
        self, binding: assignment_pb2.ReferenceBinding, start: dict[str, Array], counts: NDArray[np.int64]
    ) -> Tensors:
        """The tensors of a reference; errors as in `start`."""
        names = next(list(ref.tensors) for ref in self._bundle.references if ref.name == binding.name)
        if binding.HasField("label_counts"):
            return {LABEL_COUNTS: counts.astype(np.float32)}
        if binding.HasField("start"):
            return {name: start[name] for name in names}
        return self._take(binding.set, names)

    def _take(self, source: assignment_pb2.SetSource, names: list[str]) -> dict[str, Array]:
        if not names:
            return {}
        found = self._kept(source.kept) if source.kept else None
        what = f"kept set {source.kept!r}"
        if found is None:
            if not source.download:
                raise PassFailed(update_pb2.FAILURE_REASON_INTERNAL, f"nothing is kept yet under {source.kept!r}")
            found, what = self._downloads[source.download], f"downloaded set {source.download!r}"
        return {name: self._checked(found, name, what) for name in names}

    def _checked(self, found: Tensors, name: str, what: str) -> Array:
        wanted = self._tensors[name]
        if name not in found:
            raise PassFailed(update_pb2.FAILURE_REASON_UNSUPPORTED, f"{what} has no tensor {name!r}")
        tensor = found[name]
        kind = np.dtype(np.float32 if wanted.dtype == blob_pb2.DTYPE_FLOAT32 else np.int64)
        if tensor.shape != tuple(wanted.shape) or tensor.dtype != kind:
            raise PassFailed(
                update_pb2.FAILURE_REASON_UNSUPPORTED,
                f"{what}: tensor {name!r} is {tensor.dtype}{list(tensor.shape)}, "
                f"the bundle has {kind}{list(wanted.shape)}",
            )
        return tensor
