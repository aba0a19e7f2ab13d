"""Local planes of every kind, with training that can be done by hand in the place of programs."""

import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Rows
from fedlens_edge_client.training import local_training
from fedlens_edge_client.training.photo_set import PhotoSet, PreparedPhotos
from fedlens_proto import blob
from fedlens_proto.blob import FLOATS, Array, Blob
from fedlens_proto.difference import Differences
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2
from tests.edge_client.linear import LinearEngine, make_bundle
from tests.vectors.forms import Files, array, arrays, document, hyper, message

Plan = assignment_pb2.LocalPlan
_SEED = sha256(b"the seed of these passes").digest()
_FEATURES = 3


class Summing(LinearEngine):
    """Training as the README has it, under *Local planes of every kind*."""

    def step(
        self,
        trained: dict[str, Array],
        inputs: NDArray[np.float32],
        labels: NDArray[np.int64],
        lr: np.float32,
        mu: np.float32,
        reference: Mapping[str, Array],
    ) -> float:
        for row, label in zip(inputs, labels, strict=True):
            trained["fc.bias"][label] += lr
            trained["fc.weight"][label] += lr * row
        if mu:
            for name in trained:
                trained[name] = trained[name] - mu * (trained[name] - reference[name])
        return float(trained["fc.bias"][0])

    def predict(self, weights: Mapping[str, Array], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        logits = np.repeat(weights["fc.bias"][np.newaxis], len(inputs), axis=0).astype(np.float32)
        for column in range(_FEATURES):
            logits = logits + inputs[:, column : column + 1] * weights["fc.weight"][:, column]
        return logits


def files() -> Files:
    """`passes.json`."""
    photos = PreparedPhotos(_photos("train", 10), _photos("test", 5), {})
    sets = {"global": _set(1), "other": _set(2)}
    kept = {"mine": _set(3)}
    lasts = {"masked": manifest_pb2.LAST_BATCH_MASKED, "filled": manifest_pb2.LAST_BATCH_FILLED}
    with tempfile.TemporaryDirectory() as folder:
        bundles = {
            name: make_bundle(Path(folder) / name, with_reference=True, last_batch=last) for name, last in lasts.items()
        }
        listing = {
            "manifests": {name: message(bundle.manifest) for name, bundle in bundles.items()},
            "train": _shown(photos.train),
            "test": _shown(photos.test),
            "sets": {name: arrays(tensors) for name, tensors in sets.items()},
            "kept": {name: arrays(tensors) for name, tensors in kept.items()},
            "passes": [_done(*named, bundles[named[1]], photos, sets, kept) for named in _passes()],
        }
    return {"passes.json": document(listing)}


def _passes() -> list[tuple[str, str, Plan]]:
    stage = assignment_pb2.Stage
    source = assignment_pb2.SetSource
    confusion = assignment_pb2.ClientStatistic(confusion=assignment_pb2.Confusion())

    def plan(**changes: Any) -> Plan:
        given: dict[str, Any] = {
            "start": [assignment_pb2.StartRule(source=source(download="global"))],
            "references": [assignment_pb2.ReferenceBinding(name="global", start=True)],
            "stages": [stage(program="step", epochs=1)],
            "upload": assignment_pb2.Upload(codec=assignment_pb2.CODEC_FLOAT32),
            "evaluation": assignment_pb2.EvaluationPlan(at_start=True, at_end=True),
        }
        return Plan(**(given | changes))

    still = stage(program="step", epochs=1, hyper_values=hyper(lr=0))
    pulled = stage(program="step", epochs=2, hyper_values=hyper(mu=0.3))
    bias = assignment_pb2.TensorSelector(names=["fc.bias"])
    difference = assignment_pb2.Upload(codec=assignment_pb2.CODEC_INT8, base_set="other")
    by_other = assignment_pb2.ReferenceBinding(name="global", set=source(download="other"))
    by_mine = assignment_pb2.ReferenceBinding(name="global", set=source(kept="mine", download="other"))
    return [
        ("an epoch", "masked", plan()),
        ("a filled last batch", "filled", plan(stages=[stage(program="step", epochs=2)])),
        ("steps that run on into the next epoch", "masked", plan(stages=[stage(program="step", steps=5)])),
        ("two stages, the second with learning rate 0", "masked", plan(stages=[pulled, still])),
        (
            "the first rule counts, a kept set before the download",
            "masked",
            plan(
                start=[
                    assignment_pb2.StartRule(tensors=bias, source=source(kept="mine", download="other")),
                    assignment_pb2.StartRule(source=source(kept="yours", download="other")),
                ],
                keep=[assignment_pb2.Keep(set="mine"), assignment_pb2.Keep(set="bias", tensors=bias)],
                upload=assignment_pb2.Upload(codec=assignment_pb2.CODEC_FLOAT16, tensors=bias),
            ),
        ),
        ("pulled to a downloaded set", "masked", plan(stages=[pulled], references=[by_other])),
        ("pulled to a kept set", "masked", plan(stages=[pulled], references=[by_mine])),
        ("an int8 difference to another set", "masked", plan(stages=[pulled], upload=difference)),
        (
            "stages that are thrown away",
            "filled",
            plan(
                statistics=[confusion],
                evaluation=assignment_pb2.EvaluationPlan(at_start=True, at_end=True, fine_tuning=[pulled, still]),
            ),
        ),
        (
            "only questions",
            "masked",
            plan(
                stages=[],
                upload=None,
                evaluation=None,
                statistics=[assignment_pb2.ClientStatistic(class_counts=assignment_pb2.ClassCounts())],
            ),
        ),
    ]


def _done(
    name: str,
    kind: str,
    plan: Plan,
    bundle: Bundle,
    photos: PreparedPhotos,
    sets: Mapping[str, Mapping[str, Array]],
    kept: Mapping[str, Mapping[str, Array]],
) -> dict[str, Any]:
    engine = Summing(bundle)
    assignment = assignment_pb2.Assignment(seed=_SEED, local_plan=plan)
    result = local_training.execute(assignment, engine, photos, sets, kept.get)
    shown: dict[str, Any] = {
        "name": name,
        "manifest": kind,
        "assignment": message(assignment),
        "stages": engine.batches,
        "losses": array(np.array(engine.losses, np.float32)),
        "num_examples": result.num_examples,
        "class_counts": list(result.class_counts),
        "evaluations": [
            {
                "moment": update_pb2.EvaluationMoment.Name(moment),
                "count": found.count,
                "correct": found.correct,
                # Logarithms may differ in the last digits from machine to machine.
                "loss": round(found.loss, 9),
                "confusion": None if found.confusion is None else list(found.confusion),
            }
            for moment, found in result.evaluations.items()
        ],
        "keep": {name: arrays(tensors) for name, tensors in result.keep.items()},
    }
    if result.upload is not None:
        base = Blob.from_bytes(blob.encode(sets[plan.upload.base_set])) if plan.upload.base_set else None
        sent = result.upload if base is None else Differences(result.upload, base)
        floats = FLOATS[plan.upload.codec]
        shown["upload"] = blob.encode(sent, floats=floats, base=None if base is None else base.digest).hex()
    return shown


def _photos(name: str, count: int) -> PhotoSet:
    digests = sorted(sha256(f"{name} {index}".encode()).digest() for index in range(count - 1))
    # The last photo is there twice.
    entries = (*((digest, 0) for digest in digests), (digests[-1], 1))
    return PhotoSet(entries, Rows(_numbers(count * _FEATURES, count).reshape(count, _FEATURES), np.arange(count) % 2))


def _shown(photos: PhotoSet) -> dict[str, Any]:
    return {
        "photos": [{"photo": digest.hex(), "copy": copy} for digest, copy in photos.entries],
        "features": array(photos.rows.inputs),
        "labels": array(photos.rows.labels),
    }


def _set(seed: int) -> dict[str, Array]:
    values = _numbers(2 + 2 * _FEATURES, seed)
    return {"fc.bias": values[:2], "fc.weight": values[2:].reshape(2, _FEATURES)}


def _numbers(count: int, seed: int) -> NDArray[np.float32]:
    """Between -1 and 1, most of them no short binary fractions."""
    found: NDArray[np.float32] = (((np.arange(count) * 7919 + seed * 104729) % 2001 - 1000) / 999).astype(np.float32)
    return found
