"""Programs for phones on one core: a step of a 576-512-10 head for every objective, and the embedding of one photo.

Floors: the step as the eager function that programs are traced from, on the same batches; and the `.pt2` program as the
torch engine runs it. Both engines are taken whole, with the feeding of batches.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.backbones import seen_noise
from bench.fleets import draw_noise
from bench.head_training import FEATURES, Backbone
from bench.row import Row, Sample, against_floor, against_target, in_turns, seconds
from fedlens_edge_client.engines import Rows
from fedlens_edge_client.engines.executorch import ExecutorchEngine
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export import objectives
from fedlens_export.exporting import ExportSpec, Training, export_bundle, frozen_backbone_bundle
from fedlens_export.models import backbones
from fedlens_export.network import Network
from fedlens_export.programs import optimisers, parity
from fedlens_export.programs.steps import hyper as hyper_of
from fedlens_export.programs.steps import step
from fedlens_proto import slots
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import manifest_pb2 as pb

BATCH, CLASSES, STEPS = 16, 10, 60
REPEATS = 9
SIDE = 224
CALIBRATION_PHOTOS = 8
# With supcon_raw greater ones diverge on random features, and then nothing can be compared.
RATES = {"lr_extractor": 1e-4, "lr_classifier": 1e-4}
# Most times the eager function, most times the `.pt2`.
TARGETS = {"cross_entropy": (1.0, 1.3), "proximal": (1.0, 1.3)}
OTHER_TARGETS = (1.3, 1.6)
# Those that need no more than photos, labels and weights: the others differ by what their method brings.
OBJECTIVES = ("cross_entropy", "proximal", "classifier_proximal", "supcon", "supcon_raw", "dynamic", "moon")
MOST_STEP_KB = 40.0
MOST_EXPORT_S = 60.0
# Most times the `.pt2`, most MB, most MB in int8.
EMBED_TARGETS = {"mobilenet_v3_small": (1.0, 4.5, 1.6), "efficientnet_lite0": (0.5, 14.0, 6.0)}
NAMES = {"mobilenet_v3_small": "MobileNetV3-Small", "efficientnet_lite0": "EfficientNet-Lite0"}
_CARRIED = (pb.SLOT_KIND_WEIGHT, pb.SLOT_KIND_OPTIMISER, pb.SLOT_KIND_COUNTER)


@dataclass(frozen=True)
class _Stored:
    """Views that are there already."""

    features: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.features.shape

    def take(self, indices: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        self.features.take(indices, axis=0, out=out)


def steps(folder: Path) -> Iterator[Row]:
    """Two rows for each of these objectives, and the size of two steps."""
    for name in OBJECTIVES:
        training = Training(
            class_names=tuple(f"class {i}" for i in range(CLASSES)), batch=BATCH, objective=name, pte=True
        )
        head = backbones.build_head("hidden", FEATURES, CLASSES, seed=0)
        bundle = frozen_backbone_bundle(folder / name, Backbone(), head, training, input_size=16)
        with multiprocessing.get_context("spawn").Pool(1, keep_freed_memory) as pool:
            eager, against_eager, pt2, against_pt2 = pool.apply(_compare_steps, (folder / name, name))
        most_eager, most_pt2 = TARGETS.get(name, OTHER_TARGETS)
        measure = f".pte step, FC 576-512-10, batch {BATCH}, {name}"
        yield against_floor(measure, eager, against_eager, most_eager, "eager function")
        yield against_floor(measure, pt2, against_pt2, most_pt2, "the .pt2 in the torch engine")
        if name in TARGETS:
            yield _size(f"size of the .pte step, FC 576-512-10, {name}", bundle, "step", 1e3, MOST_STEP_KB)


def embeddings(folder: Path) -> Iterator[Row]:
    """The embedding of one photo by two backbones: time, and size in float and int8."""
    photos = folder / "photos"
    draw_noise(photos, CALIBRATION_PHOTOS, SIDE, np.random.default_rng(0))
    for model, (most_times, most_mb, most_int8_mb) in EMBED_TARGETS.items():
        spec = ExportSpec(
            model=model,
            class_names=tuple(f"class {i}" for i in range(CLASSES)),
            backbone_weights=_lively_weights(model, folder),
            pte=True,
        )
        bundle = export_bundle(folder / model, spec)
        quantised = export_bundle(folder / f"{model} int8", replace(spec, quantise="int8", calibrate=photos))
        with multiprocessing.get_context("spawn").Pool(1, keep_freed_memory) as pool:
            pt2, pte = pool.apply(_compare_embeddings, (folder / model,))
        name = NAMES[model]
        measure = f".pte embed, {name}, one photo of {SIDE} pixels"
        yield against_floor(measure, pt2, pte, most_times, "the .pt2 in the torch engine")
        yield _size(f"size of the .pte embed, {name}", bundle, "embed", 1e6, most_mb)
        yield _size(f"size of the .pte embed, {name}, int8", quantised, "embed", 1e6, most_int8_mb)


def export(folder: Path) -> list[Row]:
    """The command that exports MobileNetV3-Small in all formats, with Python's start and every comparison."""
    for i in range(CLASSES):
        (folder / "photos" / f"class {i}").mkdir(parents=True)
    weights = _lively_weights("mobilenet_v3_small", folder)
    fedlens = str(Path(sys.executable).with_name("fedlens"))
    command = [fedlens, "export", "--model", "mobilenet_v3_small", "--head", "hidden"]
    command += ["--classes-from", str(folder / "photos"), "--backbone-weights", str(weights)]
    taken: dict[str, list[float]] = {"pt2": [], "pte": []}
    for number in range(2):
        for target, times in taken.items():
            out = ["--target", target, "--onnx" if target == "pte" else "--no-onnx"]
            out += ["--out", str(folder / f"{target} {number}")]
            times.append(seconds(partial(subprocess.run, [*command, *out], check=True, capture_output=True)))
    floor, whole = (Sample(tuple(times)) for times in taken.values())
    name = f"export of a bundle in all formats, MobileNetV3-Small, {SIDE} pixels, hidden head"
    return [against_target(name, floor, whole, MOST_EXPORT_S, "the .pt2 alone", unit="s", digits=1)]


def _lively_weights(model: str, folder: Path) -> Path:
    """Such that no layer gives nearly nothing: the ranges of what is zero would say nothing about int8."""
    path = folder / f"{model}.pt"
    torch.save(seen_noise(model, SIDE).state_dict(), path)
    return path


def _size(measure: str, bundle: Bundle, program: str, scale: float, most: float) -> Row:
    unit = {1e3: "KB", 1e6: "MB"}[scale]
    files = (bundle.program_file(program, kind) for kind in (pb.PROGRAM_FORMAT_PT2, pb.PROGRAM_FORMAT_PTE))
    floor, size = (Sample((file.stat().st_size / scale,)) for file in files)
    return against_target(measure, floor, size, most, "the .pt2, which holds no weights", unit=unit, digits=2)


def _compare_steps(folder: Path, objective: str) -> tuple[Sample, Sample, Sample, Sample]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    bundle = Bundle.open(folder)
    initial = {name: np.array(value) for name, value in bundle.initial().items()}
    generator = np.random.default_rng(0)
    count, views = BATCH * STEPS, bundle.manifest.views
    shape = (count, views, FEATURES) if views else (count, FEATURES)
    features = generator.random(shape, np.float32)
    rows = Rows(
        inputs=features[:, 0] if views else features,
        labels=generator.integers(0, CLASSES, count),
        views=_Stored(features) if views else None,
    )
    batches = np.split(generator.permutation(count), STEPS)
    references = {
        reference: {slots.tensor_of(slot): initial[slots.tensor_of(slot)] for slot in taken}
        for reference, taken in slots.references(program(bundle.manifest, "step")).items()
    }

    eager = _eager(objective, initial, features, rows.labels, batches)

    work = ("step", initial, rows, batches, RATES, references)
    with_torch = partial(TorchEngine(bundle).train, *work)
    with_executorch = partial(ExecutorchEngine(bundle).train, *work)
    expected = eager()
    for found in (with_torch(), with_executorch()):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5, err_msg=name)
    scale = 1000 / STEPS
    return (*in_turns(REPEATS, eager, with_executorch, scale), *in_turns(REPEATS, with_torch, with_executorch, scale))


def _eager(
    objective: str,
    initial: Mapping[str, NDArray[np.float32]],
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    batches: list[NDArray[np.int64]],
) -> Callable[[], dict[str, NDArray[np.float32]]]:
    """Calls the function that `step` was traced from for every batch, and gives the new weights."""
    local, optimiser = objectives.by_name(objective), optimisers.SGD
    hyper = hyper_of(local, optimiser)
    network = Network(backbones.build_head("hidden", FEATURES, CLASSES, seed=0), (FEATURES,))
    source = step(network, local, optimiser, BATCH, CLASSES)
    known = {name: torch.from_numpy(value.copy()) for name, value in initial.items()}
    examples = parity.examples(source, known, hyper, seed=0)
    first = [_first(slot, known, example) for slot, example in zip(source.inputs, examples, strict=True)]
    where = {(slot.kind, slot.name): i for i, slot in enumerate(source.inputs)}
    carried = [(i, where[slot.kind, slot.name]) for i, slot in enumerate(source.outputs) if slot.kind in _CARRIED]
    inputs, targets = torch.from_numpy(features), torch.from_numpy(labels)

    def run() -> dict[str, NDArray[np.float32]]:
        given = list(first)
        with torch.no_grad():
            for batch in batches:
                index = torch.from_numpy(batch)
                given[where[pb.SLOT_KIND_INPUT, ""]] = inputs[index]
                given[where[pb.SLOT_KIND_LABEL, ""]] = targets[index]
                results = source.function(*given)
                for i, target in carried:
                    given[target] = results[i]
        pairs = zip(source.inputs, given, strict=True)
        return {slot.name: tensor.numpy() for slot, tensor in pairs if slot.kind == pb.SLOT_KIND_WEIGHT}

    return run


def _first(slot: pb.Slot, known: Mapping[str, Tensor], example: Tensor) -> Tensor:
    """As an engine begins: moments and counters at zero, references at the initial weights."""
    if slot.kind in (pb.SLOT_KIND_OPTIMISER, pb.SLOT_KIND_COUNTER):
        return torch.zeros_like(example)
    if slot.kind == pb.SLOT_KIND_HYPER and slot.name in RATES:
        return torch.tensor(RATES[slot.name])
    if slot.kind == pb.SLOT_KIND_REFERENCE:
        return known[slot.name.partition("/")[2]]
    return example


def _compare_embeddings(folder: Path) -> tuple[Sample, Sample]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    bundle = Bundle.open(folder)
    engines = TorchEngine(bundle), ExecutorchEngine(bundle)
    photo = np.random.default_rng(0).random((1, 3, SIDE, SIDE), np.float32)
    expected, found = (engine.embed(photo) for engine in engines)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    return in_turns(4 * REPEATS, lambda: engines[0].embed(photo), lambda: engines[1].embed(photo), 1000)
