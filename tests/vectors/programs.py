"""A small bundle, what its programs give for given inputs, and a whole local plan with it."""

import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedlens_edge_client.engines import Engine
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.storage.folder_album import FolderAlbum
from fedlens_edge_client.storage.tensor_files import EncodedTensors
from fedlens_edge_client.training import header, local_training, photo_set
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models.classified import Classified
from fedlens_export.programs import lowering
from fedlens_proto import wire
from fedlens_proto.blob import FLOATS, Blob, encode
from fedlens_proto.difference import Differences
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.slots import ProgramKind, batch_of, makes_rows
from fedlens_proto.slots import kind_of as kind_of_program
from fedlens_proto.v1 import assignment_pb2, manifest_pb2
from tests.vectors.forms import Files, array, arrays, document, encoded, hyper, message
from tests.vectors.pictures import png
from tests.vectors.plans import assemble, derive, plan, source, train, upload

CLASSES = ("cat", "dog", "emu")
SIDE, BATCH, FEATURES, HIDDEN = 16, 4, 16, 6
# Real rows of a run of a program that derives; the other rows are NaN.
_REAL = 5
TOLERANCE = 1e-5
_SEED = sha256(b"the seed of the plan").digest()
_FORMATS = {manifest_pb2.PROGRAM_FORMAT_PT2: "pt2", manifest_pb2.PROGRAM_FORMAT_PTE: "pte"}


def bundle_files() -> Files:
    """The bundle, exported anew; takes a quarter of a minute."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = _exported(Path(folder) / "bundle")
        paths = sorted(path for path in bundle.folder.rglob("*") if path.is_file())
        return {f"bundle/{path.relative_to(bundle.folder).as_posix()}": path.read_bytes() for path in paths}


def _exported(folder: Path) -> Bundle:
    def drawn(*shape: int, seed: int) -> torch.Tensor:
        # Not torch's generator: the weights are then those of any version.
        numbers = (np.arange(int(np.prod(shape))) * 7919 + seed * 104729) % 2001 - 1000
        return torch.from_numpy((numbers / 2000).astype(np.float32).reshape(shape))

    backbone = nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(3, 4, 3, stride=2, padding=1),
            norm=nn.BatchNorm2d(4),
            relu=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(2),
            flatten=nn.Flatten(),
        )
    ).eval()
    head = Classified(nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, len(CLASSES)))
    for seed, tensor in enumerate((*backbone.parameters(), *head.parameters())):
        with torch.no_grad():
            tensor.copy_(drawn(*tensor.shape, seed=seed))
    public = folder.with_name("public")
    for name, raw in _album().items():
        if name < "cat/09":
            (public / name).parent.mkdir(parents=True, exist_ok=True)
            (public / name).write_bytes(raw)
    training = Training(
        class_names=CLASSES,
        batch=BATCH,
        objective="proximal",
        pte=True,
        candidates=2,
        public=public,
        programs=("predictions",),
    )
    return frozen_backbone_bundle(folder, backbone, head, training, SIDE, name="vectors")


def files(bundle: Bundle, engine: Engine) -> Files:
    """Results of programs and of local training with this bundle, by this engine."""
    return _programs(bundle) | _plan(bundle, engine)


def _programs(bundle: Bundle) -> Files:
    generator = np.random.Generator(np.random.PCG64(5))
    initial = {name: np.array(value) for name, value in bundle.initial().items()}
    references = {f"global/{name}": value + np.float32(0.125) for name, value in initial.items()}
    scalars = {"lr_extractor": 0.1, "lr_classifier": 0.25, "momentum": 0.9, "weight_decay": 0.001, "mu": 0.5}
    moments = {
        slot.name: np.zeros(tuple(slot.shape), np.float32)
        for slot in program(bundle.manifest, "step").inputs
        if slot.kind == manifest_pb2.SLOT_KIND_OPTIMISER
    }

    def call(name: str, given: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, dict[str, NDArray[Any]]]:
        loaded = lowering.load(bundle.program_file(name, manifest_pb2.PROGRAM_FORMAT_PT2).read_bytes())
        slots = program(bundle.manifest, name)
        inputs = [torch.from_numpy(np.array(given[kind_of(slot)][slot.name])) for slot in slots.inputs]
        found: dict[str, dict[str, NDArray[Any]]] = {}
        with torch.no_grad():
            for slot, output in zip(slots.outputs, loaded(*inputs), strict=True):
                found.setdefault(kind_of(slot), {})[slot.name] = output.numpy()
        return found

    frozen = dict(Blob.open(bundle.part(bundle.manifest.frozen)))
    photos = generator.random((3, 1, 3, SIDE, SIDE), np.float32)
    photos[0] = 0
    embeds = [
        {
            "photo": array(photo),
            "features": array(call("embed", {"frozen": frozen, "input": {"": photo}})["features"][""]),
        }
        for photo in photos
    ]
    steps = []
    exchanged, state = initial, moments
    # The last batch has one real row; what stands in the others must have no effect, not even as a NaN.
    for real in (4, 4, 1):
        batch = {
            "input": generator.standard_normal((BATCH, FEATURES)).astype(np.float32),
            "label": generator.integers(0, len(CLASSES), BATCH),
            "mask": (np.arange(BATCH) < real).astype(np.float32),
        }
        batch["input"][real:] = np.nan
        hypers = {name: np.array(value, np.float32) for name, value in scalars.items()}
        carried = {"weight": exchanged, "optimiser": state, "reference": references, "hyper": hypers}
        found = call("step", carried | {kind: {"": value} for kind, value in batch.items()})
        exchanged, state = found["weight"], found["optimiser"]
        steps.append(
            {
                **arrays(batch),
                "outputs": {
                    "weight": arrays(exchanged),
                    "optimiser": arrays(state),
                    "loss": array(found["loss"][""]),
                    "logits": array(found["logits"][""]),
                },
                "real_rows": real,
            }
        )
    rows = generator.standard_normal((BATCH, FEATURES)).astype(np.float32)
    mask = np.array([1, 1, 1, 0], np.float32)
    logits = call("predict", {"weight": exchanged, "input": {"": rows}, "mask": {"": mask}})["logits"][""]
    listing = {
        "tolerance": TOLERANCE,
        "programs": [_described(bundle, each) for each in bundle.manifest.programs],
        "embed": embeds,
        "step": {
            "weight": arrays(initial),
            "optimiser": arrays(moments),
            "reference": arrays(references),
            "hyper": scalars,
            "batches": steps,
        },
        "derive": _derived(bundle, call, initial, exchanged),
        "predict": [{"weight": arrays(exchanged), "input": array(rows), "mask": array(mask), "logits": array(logits)}],
    }
    return {"programs.json": document(listing)}


_Values = Mapping[str, NDArray[Any]]
_Call = Callable[[str, Mapping[str, _Values]], dict[str, dict[str, NDArray[Any]]]]


def _derived(bundle: Bundle, call: _Call, first: _Values, second: _Values) -> list[dict[str, Any]]:
    """One run of each program that derives, with `first` as candidate 0, `second` as candidate 1, and no base."""
    generator = np.random.Generator(np.random.PCG64(6))
    tables: dict[str, _Values] = {}
    models = {"candidate-0": first, "candidate-1": second, "model": second, "base": {}}
    found = []
    for each in bundle.manifest.programs:
        if kind_of_program(each) != ProgramKind.DERIVE:
            continue
        given: dict[str, dict[str, NDArray[Any]]] = {}
        batch = batch_of(each)
        for slot in each.inputs:
            reference, _, tensor = slot.name.partition("/")
            value: Any = np.zeros(tuple(slot.shape), np.float32)
            if slot.kind == manifest_pb2.SLOT_KIND_REFERENCE:
                value = {**models, **tables}[reference].get(tensor, value)
            elif slot.kind == manifest_pb2.SLOT_KIND_PRESENT:
                value = np.array(slot.name != "base", np.float32)
            elif slot.kind == manifest_pb2.SLOT_KIND_HYPER:
                defaults = {hyper.name: hyper.default_value for hyper in bundle.manifest.hyper_parameters}
                value = np.array(defaults[slot.name], np.float32)
            elif slot.kind == manifest_pb2.SLOT_KIND_INPUT:
                value = generator.standard_normal(tuple(slot.shape)).astype(np.float32)
                value[_REAL:] = np.nan
            elif slot.kind == manifest_pb2.SLOT_KIND_LABEL:
                value = generator.integers(0, len(CLASSES), batch)
            elif slot.kind == manifest_pb2.SLOT_KIND_MASK:
                value = (np.arange(batch) < _REAL).astype(np.float32)
            given.setdefault(kind_of(slot), {})[slot.name] = value
        (made,) = call(each.name, given).values()
        tables |= {each.makes: made} | ({"scores": made} if each.makes in ("choice", "scores") else {})
        shown = {kind: arrays(values) for kind, values in given.items()}
        real = made if not makes_rows(each) else {name: value[:_REAL] for name, value in made.items()}
        found.append({"name": each.name, "real_rows": min(batch, _REAL), "inputs": shown, "outputs": arrays(real)})
    return found


def kind_of(slot: manifest_pb2.Slot) -> str:
    """The kind of a slot, as the vectors call it."""
    return manifest_pb2.SlotKind.Name(slot.kind).removeprefix("SLOT_KIND_").lower()


def _described(bundle: Bundle, each: manifest_pb2.Program) -> dict[str, Any]:
    files = {_FORMATS[file.format]: f"bundle/parts/{file.sha256.hex()}" for file in each.files}
    return {
        "name": each.name,
        "files": files,
        "makes": each.makes,
        "optional": list(each.optional),
        "inputs": [message(slot) for slot in each.inputs],
        "outputs": [message(slot) for slot in each.outputs],
    }


def _album() -> Files:
    """Photos by class; one stands there twice."""
    found: Files = {}
    for index in range(14):
        y, x, c = np.meshgrid(np.arange(18), np.arange(16 + index % 3), np.arange(3), indexing="ij")
        label = index % len(CLASSES)
        pixels = (x * (3 + index) + y * (2 + 5 * label) + c * 40 * label + 11 * index) % 256
        found[f"{CLASSES[label]}/{index:02}.png"] = png(pixels, 2)
    found["dog/again.png"] = found["dog/01.png"]
    return found


def _assignment(bundle: Bundle, blob: bytes) -> assignment_pb2.Assignment:
    pb = assignment_pb2
    classifier = pb.TensorSelector(roles=[manifest_pb2.TENSOR_ROLE_CLASSIFIER])
    near = pb.Binding(reference="global", source=source(value="start"))
    models = {"candidate_0": source("global"), "candidate_1": source(value="trained")}
    return pb.Assignment(
        task=3,
        round=2,
        bundle=bundle.id,
        seed=_SEED,
        time_left_ms=60_000,
        sets=[pb.BlobSet(name="global", sha256=sha256(blob).digest(), size=len(blob))],
        local_plan=plan(
            assemble("start"),
            train(
                "first",
                epochs=2,
                hyper_values=hyper(lr_extractor=0, lr_classifier=0.1, momentum=0.5),
                bindings=[near],
            ),
            train(
                start="first",
                steps=4,
                hyper_values=hyper(lr_extractor=0.05, lr_classifier=0.05, mu=0.1),
                bindings=[near],
            ),
            derive("l", "compare", pb.ROWS_TRAIN, **models),
            derive("choice", "least", losses=source(value="l")),
            derive("chosen", "blend", scores=source(value="choice"), **models),
            derive("p", "predictions", pb.ROWS_PUBLIC, model=source(value="trained")),
            keeps=[
                pb.Keep(state="mine", value="trained", tensors=classifier),
                pb.Keep(state="chosen", value="chosen"),
            ],
            uploads=[
                upload(codec=pb.CODEC_FLOAT16, base="global"),
                upload("choice", "choice"),
                upload("p", "predictions"),
            ],
            evaluations=[pb.Evaluation(label=name, value=name) for name in ("start", "trained", "chosen")],
            statistics=[
                pb.Statistic(class_counts=pb.ClassCounts()),
                pb.Statistic(confusion=pb.Confusion()),
            ],
        ),
        answer=pb.ANSWER_UPDATE,
    )


def _plan(bundle: Bundle, engine: Engine) -> Files:
    initial = bundle.initial()
    blob = encode({name: value * np.float32(0.75) for name, value in initial.items()})
    assignment = _assignment(bundle, blob)
    album = _album()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "album"
        for name, raw in album.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(raw)
        cache = FeatureCache(Path(folder) / "features.sqlite3", 1 << 20)
        photos = photo_set.prepare(FolderAlbum(root).photos(2), engine, cache)
        cache.close()
    base = Blob.from_bytes(blob)
    losses: list[float] = []
    result = local_training.execute(
        assignment, engine, photos, {"global": base}, lambda name: None, lambda step, steps, loss: losses.append(loss)
    )
    sent = {
        each.name: encode(Differences(result.uploads[each.name], base), floats=FLOATS[each.codec], base=base.digest)
        if each.base
        else encode(result.uploads[each.name])
        for each in assignment.local_plan.uploads
    }
    no_answers: Any = None
    stored = {name: EncodedTensors(sha256(raw).digest(), len(raw), raw) for name, raw in sent.items()}
    composed = header.compose(assignment, bundle.manifest, result, stored, no_answers)
    trainings = [each.train for each in assignment.local_plan.instructions if each.HasField("train")]
    listing = {
        "assignment": message(assignment),
        "sets": {"global": arrays(base)},
        "train": _rows(photos.train, album),
        "test": _rows(photos.test, album),
        "batches": [
            [
                rows.tolist()
                for rows in local_training.batches(photos.train, _SEED, number, each, BATCH, bundle.manifest.last_batch)
            ]
            for number, each in enumerate(trainings)
        ],
        "losses": array(np.array(losses, np.float32)),
        "uploads": {name: arrays(tensors) for name, tensors in result.uploads.items()},
        "keeps": {name: arrays(tensors) for name, tensors in result.keeps.items()},
        "header": message(composed),
    }
    return {
        **{f"plan/album/{name}": content for name, content in album.items()},
        "plan/assignment.bin": encoded(assignment),
        "plan/global.blob": blob,
        **{f"plan/upload-{name}.blob": raw for name, raw in sent.items()},
        "plan/update.bin": wire.frame_update(composed) + b"".join(sent.values()),
        "plan/plan.json": document(listing),
    }


def _rows(photos: photo_set.PhotoSet, album: Files) -> dict[str, Any]:
    by_digest: dict[bytes, list[str]] = {}
    for name, raw in sorted(album.items()):
        by_digest.setdefault(sha256(raw).digest(), []).append(name)
    return {
        "photos": [
            {"file": by_digest[digest][copy], "photo": digest.hex(), "copy": copy} for digest, copy in photos.entries
        ],
        "labels": photos.rows.labels.tolist(),
        "features": array(photos.rows.inputs),
    }
