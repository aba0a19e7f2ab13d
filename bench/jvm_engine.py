"""One local epoch in the JVM engine against the same epoch in Python's ExecuTorch engine, on one core.

Both run the same `.pte` with the same runtime; what differs is what feeds it. Each works in a process of its own, and
they take turns, so that a change of the machine's speed meets both alike.
"""

import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import maven
from bench.head_training import FEATURES, Backbone
from bench.row import Row, Sample, Skipped, against_floor, seconds
from fedlens_edge_client.engines import Rows
from fedlens_edge_client.engines.executorch import ExecutorchEngine
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones
from fedlens_proto.manifest import Bundle

BATCH, CLASSES, PHOTOS = 16, 10, 200
RATES = {"lr_extractor": 0.01, "lr_classifier": 0.01}
REPEATS, EPOCHS = 15, 4
WARM_UP_EPOCHS = 60
MOST = 1.1
Worker = Callable[[int], tuple[float, str]]


def measure(folder: Path) -> list[Row]:
    """One row.

    Raises:
        Skipped: There is no Maven, or no ExecuTorch for the JVM.
    """
    maven.build()
    if reason := maven.no_runtime():
        raise Skipped(reason)
    training = Training(class_names=tuple(f"class {i}" for i in range(CLASSES)), batch=BATCH, pte=True)
    head = backbones.build_head("hidden", FEATURES, CLASSES, seed=0)
    frozen_backbone_bundle(folder / "bundle", Backbone(), head, training, input_size=16)
    generator = np.random.default_rng(0)
    (folder / "features.f32").write_bytes(generator.random((PHOTOS, FEATURES), np.float32).tobytes())
    (folder / "labels.i64").write_bytes(generator.integers(0, CLASSES, PHOTOS).tobytes())
    core = max(os.sched_getaffinity(0))
    with _python(folder, core) as python, _jvm(folder, core) as jvm:
        (_, theirs), (_, ours) = python(WARM_UP_EPOCHS), jvm(WARM_UP_EPOCHS)
        if ours != theirs:
            raise AssertionError("the engines train other weights")
        pairs = [(python(EPOCHS)[0], jvm(EPOCHS)[0]) for _ in range(REPEATS)]
    return [
        against_floor(
            f"one local epoch, {PHOTOS} photos, FC 576-512-10, batch {BATCH}, JVM engine",
            Sample(tuple(pair[0] for pair in pairs)),
            Sample(tuple(pair[1] for pair in pairs)),
            MOST,
            "the Python ExecuTorch engine",
        )
    ]


@contextmanager
def _jvm(folder: Path, core: int) -> Iterator[Worker]:
    classes = maven.class_path("jvm-engine", tests=True)
    java = ["java", "-Xmx256m", "-cp", classes, "org.fedlens.jvm.EpochBench", str(folder)]
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *java], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answers = process.stdin, process.stdout

    def ask(epochs: int) -> tuple[float, str]:
        asked.write(f"{epochs}\n")
        asked.flush()
        answer = answers.readline().split()
        if not answer:
            raise RuntimeError(f"the JVM has ended with status {process.wait(30)}")
        ms, digest = answer
        return float(ms), digest

    try:
        yield ask
    finally:
        asked.close()
        process.wait(30)
        answers.close()


@contextmanager
def _python(folder: Path, core: int) -> Iterator[Worker]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, folder, core), daemon=True)
    process.start()
    # With both ends open here, nobody would hear of its end.
    theirs.close()

    def ask(epochs: int) -> tuple[float, str]:
        ours.send(epochs)
        found: tuple[float, str] = ours.recv()
        return found

    try:
        yield ask
    finally:
        with suppress(BrokenPipeError):
            ours.send(0)
        process.join(30)


def _serve(connection: Connection, folder: Path, core: int) -> None:
    """For each number of epochs: milliseconds of one of them, and the SHA-256 of what the last one gave."""
    keep_freed_memory()
    os.sched_setaffinity(0, {core})
    bundle = Bundle.open(folder / "bundle")
    engine = ExecutorchEngine(bundle)
    weights = {name: np.array(value) for name, value in bundle.initial().items()}
    features = np.frombuffer((folder / "features.f32").read_bytes(), np.float32).reshape(PHOTOS, FEATURES)
    rows = Rows(features, np.frombuffer((folder / "labels.i64").read_bytes(), np.int64))
    batches = [np.arange(start, min(start + BATCH, PHOTOS)) for start in range(0, PHOTOS, BATCH)]
    trained: dict[str, NDArray[np.generic]] = {}

    def train(epochs: int) -> None:
        for _ in range(epochs):
            trained.update(engine.train("step", weights, rows, batches, RATES, {}))

    while epochs := connection.recv():
        taken = seconds(partial(train, epochs)) * 1000 / epochs
        digest = sha256(b"".join(trained[name].tobytes() for name in sorted(trained))).hexdigest()
        connection.send((taken, digest))
