"""A small bundle, what its programs give for given inputs, and a whole local plan with it."""

import tempfile
from collections import OrderedDict
from collections.abc import Mapping
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
from fedlens_proto.blob import Blob, encode
from fedlens_proto.difference import Differences
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import assignment_pb2, blob_pb2, manifest_pb2
from tests.vectors.forms import Files, array, arrays, document, encoded, hyper, message
from tests.vectors.pictures import png

CLASSES = ("cat", "dog", "emu")
SIDE, BATCH, FEATURES, HIDDEN = 16, 4, 16, 6
TOLERANCE = 1e-5
_SEED = sha256(b"the seed of the pass").digest()
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
    training = Training(class_names=CLASSES, batch=BATCH, objective="proximal", pte=True)
    return frozen_backbone_bundle(folder, backbone, head, training, SIDE, name="vectors")


def files(bundle: Bundle, engine: Engine) -> Files:
    """Results of programs and of local training with this bundle, by this engine."""
    return _programs(bundle) | _pass(bundle, engine)


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
        "predict": [{"weight": arrays(exchanged), "input": array(rows), "mask": array(mask), "logits": array(logits)}],
    }
    return {"programs.json": document(listing)}


def kind_of(slot: manifest_pb2.Slot) -> str:
    """The kind of a slot, as the vectors call it."""
    return manifest_pb2.SlotKind.Name(slot.kind).removeprefix("SLOT_KIND_").lower()


def _described(bundle: Bundle, each: manifest_pb2.Program) -> dict[str, Any]:
    files = {_FORMATS[file.format]: f"bundle/parts/{file.sha256.hex()}" for file in each.files}
    return {
        "name": each.name,
        "files": files,
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
    return pb.Assignment(
        task=3,
        round=2,
        bundle=bundle.id,
        seed=_SEED,
        time_left_ms=60_000,
        sets=[pb.BlobSet(name="global", sha256=sha256(blob).digest(), size=len(blob))],
        local_plan=pb.LocalPlan(
            start=[pb.StartRule(source=pb.SetSource(download="global"))],
            references=[pb.ReferenceBinding(name="global", start=True)],
            stages=[
                pb.Stage(program="step", epochs=2, hyper_values=hyper(lr_extractor=0, lr_classifier=0.1, momentum=0.5)),
                pb.Stage(program="step", steps=4, hyper_values=hyper(lr_extractor=0.05, lr_classifier=0.05, mu=0.1)),
            ],
            keep=[pb.Keep(set="mine", tensors=classifier)],
            upload=pb.Upload(codec=pb.CODEC_FLOAT16, base_set="global"),
            statistics=[
                pb.ClientStatistic(class_counts=pb.ClassCounts()),
                pb.ClientStatistic(confusion=pb.Confusion()),
            ],
            evaluation=pb.EvaluationPlan(at_start=True, at_end=True),
        ),
        answer=pb.ANSWER_UPDATE,
    )


def _pass(bundle: Bundle, engine: Engine) -> Files:
    initial = bundle.initial()
    blob = encode({name: value * np.float32(0.75) for name, value in initial.items()})
    assignment = _assignment(bundle, blob)
    plan = assignment.local_plan
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
    assert result.upload is not None
    raw = encode(Differences(result.upload, base), floats=blob_pb2.DTYPE_FLOAT16, base=base.digest)
    no_answers: Any = None
    composed = header.compose(
        assignment, bundle.manifest, result, EncodedTensors(sha256(raw).digest(), len(raw), raw), no_answers
    )
    listing = {
        "assignment": message(assignment),
        "sets": {"global": arrays(base)},
        "train": _rows(photos.train, album),
        "test": _rows(photos.test, album),
        "stages": [
            [rows.tolist() for rows in local_training.batches(photos.train, _SEED, index, stage, bundle.manifest)]
            for index, stage in enumerate(plan.stages)
        ],
        "losses": array(np.array(losses, np.float32)),
        "trained": arrays(result.upload),
        "kept": {name: arrays(tensors) for name, tensors in result.keep.items()},
        "header": message(composed),
    }
    return {
        **{f"pass/album/{name}": content for name, content in album.items()},
        "pass/assignment.bin": encoded(assignment),
        "pass/global.blob": blob,
        "pass/upload.blob": raw,
        "pass/update.bin": wire.frame_update(composed) + raw,
        "pass/pass.json": document(listing),
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
