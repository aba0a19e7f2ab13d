"""Local plans of every kind, and plans and manifests that must be refused, with programs that can be done by hand."""

import tempfile
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Rows
from fedlens_edge_client.training import local_training
from fedlens_edge_client.training.photo_set import PhotoSet, PreparedPhotos
from fedlens_proto import blob, plan_check
from fedlens_proto.blob import FLOATS, Array, Blob
from fedlens_proto.difference import Differences
from fedlens_proto.manifest import Bundle
from fedlens_proto.plans import consents
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2
from tests.vectors import plan_arithmetic, refused_plans
from tests.vectors.forms import Files, array, arrays, document, hyper, message
from tests.vectors.plan_arithmetic import FEATURES, PUBLIC, ByHand

_SEED = sha256(b"the seed of these plans").digest()
_CONFUSION = pb.Statistic(confusion=pb.Confusion())
_COUNTS = pb.Statistic(class_counts=pb.ClassCounts())
_BIAS = pb.TensorSelector(names=["fc.bias"])
_F32 = pb.CODEC_FLOAT32


def files() -> Files:
    """`plans.json`."""
    public = _public()
    raw = blob.encode({"input": public.rows.inputs, "label": public.rows.labels})
    digest = sha256(raw).digest()
    kinds = {"masked": manifest_pb2.LAST_BATCH_MASKED, "filled": manifest_pb2.LAST_BATCH_FILLED}
    sets = {name: _set(seed) for seed, name in enumerate(("global", "other", "centre-1"), start=1)}
    sets["teacher"] = {"score": _numbers(PUBLIC, 9)}
    sets["means"] = {"mean": _numbers(FEATURES, 10)}
    state = {"mine": _set(5), "means": {"mean": _numbers(FEATURES, 6)}, "unfit": {"fc.bias": _numbers(3, 7)}}
    photos = PreparedPhotos(_photos("train", 11), _photos("test", 5), {})
    with tempfile.TemporaryDirectory() as folder:
        bundles = {
            name: plan_arithmetic.bundle_of(
                Path(folder) / name, plan_arithmetic.manifest_of(kind, digest, len(raw)), {digest: raw}
            )
            for name, kind in kinds.items()
        }
        done = [_done(bundles, photos, sets, state, **case) for case in _cases()]
    manifests = {name: bundle.manifest for name, bundle in bundles.items()}
    shown = {"de": ("Katze", "Hund"), "pt-BR": ("gato", "cachorro"), "zh-Hant": ("貓", "狗")}
    manifests["filled"].display_names.extend(
        manifest_pb2.DisplayNames(language=language, names=names) for language, names in shown.items()
    )
    return {
        "plans.json": document(
            {
                "manifests": {name: message(manifest) for name, manifest in manifests.items()},
                "train": _shown(photos.train),
                "test": _shown(photos.test),
                "public": _shown(public),
                "sets": {name: arrays(tensors) for name, tensors in sets.items()},
                "state": {name: arrays(tensors) for name, tensors in state.items()},
                "plans": done,
                "refused_plans": refused_plans.plans(manifests["masked"]),
                "refused_manifests": refused_plans.refused_manifests(manifests["masked"]),
            },
            indent=None,
        )
    }


def source(download: str = "", state: str = "", value: str = "") -> pb.Source:
    """A source of tensors."""
    found = pb.Source(state=state)
    if value:
        found.value = value
    elif download:
        found.download = download
    return found


def assemble(value: str, *rules: pb.Rule) -> pb.Instruction:
    """An instruction that assembles weights, by default all of `global`."""
    given = rules or (pb.Rule(source=source("global")),)
    return pb.Instruction(value=value, assemble=pb.Assemble(rules=given))


def train(value: str = "trained", start: str = "start", program: str = "step", **fields: Any) -> pb.Instruction:
    """An instruction that trains, by default for an epoch over the train photos."""
    length = {} if "steps" in fields else {"epochs": 1}
    return pb.Instruction(
        value=value, train=pb.Train(**{"program": program, "start": start, "rows": pb.ROWS_TRAIN, **length, **fields})
    )


def derive(value: str, program: str, rows: pb.Rows = pb.ROWS_UNSPECIFIED, **sources: pb.Source) -> pb.Instruction:
    """An instruction that derives, with a source for each reference; `candidate_0` is `candidate-0`."""
    bindings = [pb.Binding(reference=name.replace("_", "-"), source=each) for name, each in sources.items()]
    return pb.Instruction(value=value, derive=pb.Derive(program=program, rows=rows, bindings=bindings))


def upload(value: str = "trained", name: str = "weights", codec: pb.Codec = _F32, **fields: Any) -> pb.Upload:
    """An upload, by default of the trained weights."""
    return pb.Upload(name=name, value=value, codec=codec, **fields)


def plan(*instructions: pb.Instruction, **fields: Any) -> pb.LocalPlan:
    """A plan, by default FedAvg's with evaluations before and after."""
    values = [each.value for each in instructions] if instructions else ["start", "trained"]
    usual: dict[str, Any] = {
        "format": 1,
        "instructions": instructions or (assemble("start"), train()),
        "uploads": [upload()] if "trained" in values else [],
        "evaluations": [pb.Evaluation(label=name, value=name) for name in ("start", "trained") if name in values],
    }
    return pb.LocalPlan(**(usual | fields))


def _cases() -> list[dict[str, Any]]:
    pulled = hyper(mu=0.25)
    bind = [pb.Binding(reference="global", source=source("other"))]
    mine = [pb.Binding(reference="global", source=source(state="mine"))]
    near = [pb.Binding(reference="global", source=source(value="start"))]
    counts = [pb.Binding(reference="counts", source=pb.Source(label_counts=True))]
    teacher = [pb.Binding(reference="teacher", source=source("teacher"))]
    start = assemble("start")
    sums = derive("s", "sums", pb.ROWS_TRAIN, model=source(value="trained"))
    means = derive("m", "mean", sums=source(value="s"), previous=source("means", state="means"))
    nearest = pb.Evaluation(
        label="nearest",
        value="trained",
        program="nearest",
        bindings=[pb.Binding(reference="means", source=source(value="m"))],
    )
    evaluations = [pb.Evaluation(label=name, value=name) for name in ("start", "trained")]
    return [
        {"name": "an epoch", "plan": plan()},
        {"name": "a filled last batch", "manifest": "filled", "plan": plan(start, train(epochs=2))},
        {"name": "steps that run on into the next epoch", "plan": plan(start, train(steps=5))},
        {
            "name": "two trainings, the second with learning rate 0",
            "plan": plan(start, train("first"), train(start="first", hyper_values=hyper(lr=0))),
        },
        {
            "name": "the first rule counts, client state before the download",
            "plan": plan(
                assemble(
                    "start",
                    pb.Rule(tensors=_BIAS, source=source("other", state="mine")),
                    pb.Rule(source=source("other", state="never-kept")),
                ),
                train(),
                keeps=[pb.Keep(state="mine", value="trained"), pb.Keep(state="bias", value="trained", tensors=_BIAS)],
                uploads=[upload(codec=pb.CODEC_FLOAT16, tensors=_BIAS)],
            ),
        },
        {
            "name": "client state that does not fit gives way to the download",
            "plan": plan(assemble("start", pb.Rule(source=source("other", state="unfit"))), train()),
        },
        {"name": "pulled to a download", "plan": plan(start, train(hyper_values=pulled, bindings=bind))},
        {
            "name": "pulled to client state, and to the start",
            "plan": plan(
                start,
                train("near", hyper_values=pulled, bindings=mine),
                train(start="near", hyper_values=pulled, bindings=near),
            ),
        },
        {"name": "an optional reference that is not bound", "plan": plan(start, train(hyper_values=pulled))},
        {
            "name": "an optional reference bound to a set that is absent",
            "listed": ["global"],
            "plan": plan(start, train(hyper_values=pulled, bindings=bind)),
        },
        {
            "name": "an int8 difference to a set",
            "plan": plan(start, train(), uploads=[upload(codec=pb.CODEC_INT8, base="global")]),
        },
        {
            "name": "a difference to another set than the start",
            "plan": plan(start, train(), uploads=[upload(base="other")]),
        },
        {
            "name": "a training that is thrown away",
            "manifest": "filled",
            "plan": plan(
                start,
                train(),
                train("fine_tuned", epochs=2),
                evaluations=[*evaluations, pb.Evaluation(label="fine_tuned", value="fine_tuned")],
                statistics=[_CONFUSION],
            ),
        },
        {"name": "only counts", "plan": pb.LocalPlan(format=1, statistics=[_COUNTS])},
        {
            "name": "random numbers and label counts",
            "plan": plan(start, train(program="noisy", epochs=2, bindings=counts)),
        },
        {
            "name": "sums over the train photos, a mean of them beside the one before, and a prediction by it",
            "plan": plan(
                start,
                train(),
                sums,
                means,
                keeps=[pb.Keep(state="means", value="m")],
                uploads=[upload("m", "means"), upload()],
                evaluations=[*evaluations, nearest],
                statistics=[_COUNTS, _CONFUSION],
            ),
        },
        {
            "name": "a mean without one before, from a set that is absent",
            "listed": ["global"],
            "plan": plan(
                start,
                train(),
                sums,
                derive("m", "mean", sums=source(value="s"), previous=source("means")),
                uploads=[upload("m", "means")],
            ),
        },
        {
            "name": "scores of the public photos, and a training towards a teacher's",
            "plan": plan(
                start,
                train("t", program="distil", rows=pb.ROWS_PUBLIC, epochs=2, bindings=teacher),
                train(start="t"),
                derive("p", "scores", pb.ROWS_PUBLIC, model=source(value="trained")),
                uploads=[upload("p", "scores")],
            ),
        },
        {
            "name": "a training on public photos alone counts none",
            "plan": plan(start, train(program="distil", rows=pb.ROWS_PUBLIC, bindings=teacher)),
        },
        {
            "name": "weights mixed of candidates, one of them absent",
            "listed": ["global", "other"],
            "plan": plan(
                derive("mixed", "mix", candidate_0=source("other"), candidate_1=source("centre-1")),
                train(start="mixed"),
                evaluations=[pb.Evaluation(label="mixed", value="mixed")],
            ),
        },
        {
            "name": "photos set apart for validation",
            "plan": plan(
                start,
                train(),
                derive("s", "sums", pb.ROWS_VALIDATION, model=source(value="start")),
                uploads=[upload(), upload("s", "sums")],
                statistics=[_COUNTS],
                validation_percent=40,
            ),
        },
        {
            "name": "too few photos to set any apart",
            "count": 4,
            "plan": plan(
                start,
                train(),
                derive("s", "sums", pb.ROWS_VALIDATION, model=source(value="start")),
                uploads=[upload(), upload("s", "sums")],
                validation_percent=50,
            ),
        },
    ]


def _done(
    bundles: Mapping[str, Bundle],
    photos: PreparedPhotos,
    sets: Mapping[str, Mapping[str, Array]],
    state: Mapping[str, Mapping[str, Array]],
    *,
    name: str,
    plan: pb.LocalPlan,
    manifest: str = "masked",
    listed: list[str] | None = None,
    count: int = 11,
) -> dict[str, Any]:
    listed = sorted(sets) if listed is None else listed
    engine = ByHand(bundles[manifest])
    assignment = pb.Assignment(seed=_SEED, local_plan=plan, answer=pb.ANSWER_UPDATE)
    assignment.sets.extend(pb.BlobSet(name=each) for each in listed)
    plan_check.check(plan, engine.bundle.manifest, sets=listed)
    given = PreparedPhotos(photos.train.at(range(count)), photos.test, {})
    downloads = {each: sets[each] for each in listed} | {"initial": _initial()}
    result = local_training.execute(assignment, engine, given, downloads, state.get)
    shown: dict[str, Any] = {
        "name": name,
        "manifest": manifest,
        "photos": count,
        "assignment": message(assignment),
        "consents": sorted(consents(plan, engine.bundle.manifest)),
        "batches": engine.batches,
        "losses": array(np.array(engine.losses, np.float32)),
        "num_examples": result.num_examples,
        "class_counts": list(result.class_counts),
        "evaluations": [
            {
                "label": label,
                "count": found.count,
                "correct": found.correct,
                # Logarithms may differ in the last digits from machine to machine.
                "loss": round(found.loss, 9),
                "confusion": None if found.confusion is None else list(found.confusion),
            }
            for label, found in result.evaluations.items()
        ],
        "keeps": {name: arrays(tensors) for name, tensors in result.keeps.items()},
        "uploads": {each.name: _sent(each, result.uploads[each.name], sets).hex() for each in plan.uploads},
    }
    return shown


def _sent(asked: pb.Upload, tensors: Mapping[str, Array], sets: Mapping[str, Mapping[str, Array]]) -> bytes:
    encode = partial(blob.encode, floats=FLOATS[asked.codec])
    if not asked.base:
        return encode(tensors)
    base = Blob.from_bytes(blob.encode(sets[asked.base]))
    return encode(Differences(tensors, base), base=base.digest)


def _photos(name: str, count: int) -> PhotoSet:
    digests = sorted(sha256(f"{name} {index}".encode()).digest() for index in range(count - 1))
    # The last photo is there twice.
    entries = (*((digest, 0) for digest in digests), (digests[-1], 1))
    return PhotoSet(entries, Rows(_numbers(count * FEATURES, count).reshape(count, FEATURES), np.arange(count) % 2))


def _public() -> PhotoSet:
    rows = Rows(_numbers(PUBLIC * FEATURES, 8).reshape(PUBLIC, FEATURES), np.array([0, 1, 1, 0, 0]))
    return PhotoSet(tuple((bytes(32), index) for index in range(PUBLIC)), rows)


def _shown(photos: PhotoSet) -> dict[str, Any]:
    return {
        "photos": [{"photo": digest.hex(), "copy": copy} for digest, copy in photos.entries],
        "features": array(photos.rows.inputs),
        "labels": array(photos.rows.labels),
    }


def _initial() -> dict[str, Array]:
    return {name: np.zeros(shape, np.float32) for name, shape in plan_arithmetic.SHAPES.items()}


def _set(seed: int) -> dict[str, Array]:
    values = _numbers(2 + 2 * FEATURES, seed)
    return {"fc.bias": values[:2], "fc.weight": values[2:].reshape(2, FEATURES)}


def _numbers(count: int, seed: int) -> NDArray[np.float32]:
    """Between -1 and 1, most of them no short binary fractions."""
    found: NDArray[np.float32] = (((np.arange(count) * 7919 + seed * 104729) % 2001 - 1000) / 999).astype(np.float32)
    return found
