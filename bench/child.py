"""Programs in a child against the same in this process: an epoch of training a 576-512-10 head, and loading a bundle.

Both sides have all processors: a client that waits for its child leaves it one.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.backbones import seen_noise
from bench.head_training import FEATURES
from bench.row import Row, Sample, against_floor, against_more, in_turns, seconds
from fedlens_edge_client.engines import Engine, Rows
from fedlens_edge_client.engines.child.child import Child
from fedlens_edge_client.engines.child.engine import ChildEngine
from fedlens_edge_client.engines.choice import ABILITIES, EngineName, make_engine
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_proto.manifest import Bundle
from fedlens_proto.programs import pt2_forms

BATCH, CLASSES, SIDE = 16, 10, 32
ROWS, EPOCHS = 800, 2
REPEATS, LOADS = 45, 5
MOST_TIMES = 1.05
MOST_MORE_S = 0.1
MODEL = "mobilenet_v3_small"
HERE = "in this process"


def measure(folder: Path) -> Iterator[Row]:
    """Two rows for each engine."""
    keep_freed_memory()  # as the child does
    weights = folder / "weights.pt"
    torch.save(seen_noise(MODEL, SIDE).state_dict(), weights)
    spec = ExportSpec(
        model=MODEL,
        class_names=tuple(f"class {i}" for i in range(CLASSES)),
        head="hidden",
        batch=BATCH,
        input_size=SIDE,
        backbone_weights=weights,
        pte=True,
    )
    bundle = export_bundle(folder / "bundle", spec)
    for name in EngineName:
        yield _training(name, bundle)
        yield _loading(name, bundle)


def _training(name: EngineName, bundle: Bundle) -> Row:
    generator = np.random.default_rng(0)
    rows = Rows(generator.random((ROWS, FEATURES), np.float32), generator.integers(0, CLASSES, ROWS))
    batches = [row for _ in range(EPOCHS) for row in np.split(generator.permutation(ROWS), ROWS // BATCH)]
    work: tuple[Any, ...] = (
        "step",
        dict(bundle.initial()),
        rows,
        batches,
        {"lr_classifier": 0.01},
        {},
        lambda loss: None,
    )
    child = Child(ABILITIES[name].program_format)
    engine = ChildEngine(bundle, ABILITIES[name].program_format, lambda: child)
    own = make_engine(name, bundle)
    for tensor, value in own.train(*work).items():
        np.testing.assert_array_equal(engine.train(*work)[tensor], value)
    floor, found = in_turns(REPEATS, partial(own.train, *work), partial(engine.train, *work), scale=1000 / EPOCHS)
    before = time.process_time(), _processor_s(child)
    own.train(*work)
    between = time.process_time()
    engine.train(*work)
    alone, beside, there = between - before[0], time.process_time() - between, _processor_s(child) - before[1]
    child.end()
    measure = f"an epoch of head training in a child, 576-512-10, batch {BATCH}, {name}"
    note = f"processor time: {there / alone:.2f}x in the child, and {beside / alone:.2f}x beside it in the client"
    return against_floor(measure, floor, found, MOST_TIMES, HERE, note=note)


def _loading(name: EngineName, bundle: Bundle) -> Row:
    floor, found = [], []
    for _ in range(LOADS):
        child = Child(ABILITIES[name].program_format)
        child.wait_until_ready()
        engine = ChildEngine(bundle, ABILITIES[name].program_format, lambda child=child: child)  # type: ignore[misc]
        own = make_engine(name, bundle)
        # The child has never seen these shapes; what this process keeps of the turn before must not help it.
        pt2_forms.results.cache_clear()
        floor.append(seconds(partial(_use, own)))
        found.append(seconds(partial(_use, engine)))
        child.end()
    return against_more(
        f"a bundle's embed, step and predict loaded and run once in a waiting child, {MODEL}, {name}",
        Sample(tuple(floor)),
        Sample(tuple(found)),
        MOST_MORE_S,
        HERE,
        unit="s",
        digits=3,
    )


def _processor_s(child: Child) -> float:
    """The processor time that a child has taken; proc(5) says where that is."""
    return int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[0]) / 1e9


def _use(engine: Engine) -> None:
    """Run each program once."""
    photo = np.zeros((1, 3, SIDE, SIDE), np.float32)
    features = engine.embed(photo)[np.newaxis]
    weights = dict(engine.bundle.initial())
    engine.train("step", weights, Rows(features, np.zeros(1, np.int64)), [np.zeros(1, np.int64)], {}, {})
    engine.predict(weights, features)
