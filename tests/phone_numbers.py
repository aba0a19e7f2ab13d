"""Bundles for phones with what Python's engines compute with them: what an engine in another language is held against.

    python -m tests.phone_numbers FOLDER

For each case `FOLDER/NAME/bundle` is a bundle and `FOLDER/NAME/numbers.json` holds inputs and outputs, as arrays of the
test vectors. All outputs are those of ExecuTorch; the few below `torch` are of the torch engine. Takes a minute or two.
"""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from fedlens_edge_client.engines import Engine, Rows
from fedlens_edge_client.engines.executorch import ExecutorchEngine
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones
from fedlens_proto import slots
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.slots import ProgramKind, batch_of, kind_of, tensor_of
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.vectors.forms import array, arrays, document

SIDE, BATCH, ROWS, STEPS = 12, 4, 10, 9
CLASSES = ("cat", "dog", "emu")
TRAINING = Training(class_names=CLASSES, batch=BATCH, pte=True, stored_views=4)
CASES = {
    # Adam has a counter of steps for each role.
    "cross_entropy": replace(TRAINING, optimiser="adam"),
    "classifier_proximal": replace(TRAINING, objective="classifier_proximal"),
    "supcon": replace(TRAINING, objective="supcon"),
    "concatenated": replace(TRAINING, concatenated=2),
    # Models, losses and class means that are compared, blended and derived.
    "candidates": replace(TRAINING, objective="prototypes", candidates=2, programs=("dual_update",)),
    "proximal_int8": replace(TRAINING, objective="proximal", quantise="int8"),
}


class Views:
    """Views that are there already."""

    def __init__(self, features: NDArray[np.float32]) -> None:
        self._features = features
        self.shape = features.shape

    def take(self, indices: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """As `engines.Views.take`."""
        self._features.take(indices, axis=0, out=out)


def export(folder: Path, training: Training) -> Bundle:
    """A convolution as backbone, and a head of two layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        backbone = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        ).eval()
    if training.quantise:
        training = replace(training, calibrate=photos(folder.parent / "photos"))
    head = backbones.build_head("hidden", 24, len(CLASSES), seed=0)
    return frozen_backbone_bundle(folder, backbone, head, training, SIDE, name="phone")


def photos(folder: Path) -> Path:
    """A few photos of noise, to calibrate with."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(7)
    for i in range(4):
        Image.fromarray(generator.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(folder / f"{i}.png")
    return folder


def numbers(bundle: Bundle) -> dict[str, Any]:
    """Inputs of all programs, and what they give."""
    engine = ExecutorchEngine(bundle)
    generator = np.random.default_rng(11)
    manifest = bundle.manifest
    shown = generator.random((2, 3, SIDE, SIDE), np.float32)
    found: dict[str, Any] = {
        "photos": array(shown),
        "features": array(np.stack([engine.embed(photo[np.newaxis]) for photo in shown])),
    }
    if manifest.views:
        draws = {slot.kind: slot.shape[1] for slot in program(manifest, "view").inputs if len(slot.shape) == 2}
        uniforms = generator.random((len(shown), draws[pb.SLOT_KIND_UNIFORM]), np.float32)
        found |= {"uniforms": array(uniforms), "views": array(engine.view(shown, uniforms))}
    if manifest.concatenated:
        extractor = {
            slot.name: generator.standard_normal(tuple(slot.shape), np.float32) / np.float32(5)
            for slot in program(manifest, "extract").inputs
            if slot.kind == pb.SLOT_KIND_EXTRACTOR
        }
        given = generator.standard_normal((ROWS, 24), np.float32)
        found |= {"extractor": arrays(extractor), "extract_inputs": array(given)}
        found["extracted"] = array(engine.extract(extractor, given))
    return found | _training(bundle, engine, generator)


def _training(bundle: Bundle, engine: Engine, generator: np.random.Generator) -> dict[str, Any]:
    manifest = bundle.manifest
    weights = {name: np.array(value) for name, value in bundle.initial().items()}
    for tensor in manifest.tensors:
        assert tensor.dtype == blob_pb2.DTYPE_FLOAT32
    references = _near(program(manifest, "step"), weights, generator)
    width = next(slot for slot in program(manifest, "predict").inputs if slot.kind == pb.SLOT_KIND_INPUT).shape[1]
    views = generator.standard_normal((ROWS, max(1, manifest.views), width), np.float32)
    labels = generator.integers(0, len(CLASSES), ROWS)
    rows = Rows(views[:, 0].copy(), labels, Views(views) if manifest.views else None)
    # The last batch of each epoch is short.
    order = [generator.permutation(ROWS) for _ in range(STEPS // 3)]
    batches = [each[start : start + BATCH] for each in order for start in range(0, ROWS, BATCH)]
    hyper = {"lr_extractor": 0.02, "lr_classifier": 0.05}
    losses: list[float] = []
    trained = engine.train("step", weights, rows, batches, hyper, references, losses.append)
    by_torch = TorchEngine(bundle).train("step", weights, rows, batches, hyper, references)
    return {
        "weights": arrays(weights),
        "references": {name: arrays(tensors) for name, tensors in references.items()},
        "inputs": array(rows.inputs),
        "views_of_rows": array(views),
        "labels": array(labels),
        "batches": [batch.tolist() for batch in batches],
        "hyper": hyper,
        "losses": array(np.array(losses, np.float32)),
        "trained": arrays(trained),
        "logits": array(engine.predict(trained, rows.inputs)),
        "torch": {"trained": arrays(by_torch)},
        "derived": _derived(engine, weights, rows, generator),
    }


def _near(of: pb.Program, weights: dict[str, Array], generator: np.random.Generator) -> dict[str, dict[str, Array]]:
    """Every reference of a program: weights that are near the given ones, and tables of numbers in 0..1."""

    def made(slot: pb.Slot) -> Array:
        name, shape = tensor_of(slot), tuple(slot.shape)
        if name in weights:
            away: Array = generator.standard_normal(shape, np.float32) / np.float32(50)
            return weights[name] + away
        return generator.random(shape, np.float32)

    return {name: {tensor_of(slot): made(slot) for slot in found} for name, found in slots.references(of).items()}


def _derived(engine: Engine, weights: dict[str, Array], rows: Rows, generator: np.random.Generator) -> list[Any]:
    """Each program that derives, with its arguments and its result."""
    found = []
    for each in engine.bundle.manifest.programs:
        if kind_of(each) != ProgramKind.DERIVE:
            continue
        references = _near(each, weights, generator)
        # Of several models that may be absent, only the first is there.
        references = {name: tensors for name, tensors in references.items() if name not in each.optional[1:]}
        over = rows if batch_of(each) else None
        result = engine.derive(each.name, {}, references, over)
        found.append(
            {
                "program": each.name,
                "over_rows": over is not None,
                "references": {name: arrays(tensors) for name, tensors in references.items()},
                "result": arrays(result),
            }
        )
    return found


def write(folder: Path, name: str) -> None:
    """Write one case."""
    bundle = export(folder / name / "bundle", CASES[name])
    (folder / name / "numbers.json").write_bytes(document(numbers(bundle)))


def main(folder: Path) -> None:
    """Write all cases, side by side: nearly all the time is one thread's work of lowering programs."""
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as processes:
        list(processes.map(partial(write, folder), CASES))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
