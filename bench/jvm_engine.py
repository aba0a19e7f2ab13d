"""One local epoch in the JVM engine against Python's ExecuTorch engine, and predictions beside a training.

Both engines run the same `.pte` with the same runtime; what differs is what feeds it. Each works in a process of its
own, and they take turns on one core, so that a change of the machine's speed meets both alike. Predictions have an
engine and a thread of their own, as in a client, and all cores; those beside a training take turns with those alone.
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
PREDICTIONS, WARM_UP_PREDICTIONS = 20, 200
MOST, MOST_BESIDE = 1.1, 1.3
Worker = Callable[[int], tuple[float, str]]
Ask = Callable[[str], list[str]]


def measure(folder: Path) -> list[Row]:
    """Two rows.

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
    with _python(folder, core) as python, _jvm(folder, {core}) as asked:

        def jvm(epochs: int) -> tuple[float, str]:
            ms, digest = asked(f"{epochs}")
            return float(ms), digest

        (_, theirs), (_, ours) = python(WARM_UP_EPOCHS), jvm(WARM_UP_EPOCHS)
        if ours != theirs:
            raise AssertionError("the engines train other weights")
        pairs = [(python(EPOCHS)[0], jvm(EPOCHS)[0]) for _ in range(REPEATS)]
    with _jvm(folder, os.sched_getaffinity(0)) as asked:

        def predictions(how: str, count: int = PREDICTIONS) -> float:
            return float(asked(f"{how} {count}")[0])

        for how in ("alone", "beside"):
            predictions(how, WARM_UP_PREDICTIONS)
        turns = [(predictions("alone"), predictions("beside")) for _ in range(REPEATS)]
    return [
        against_floor(
            f"one local epoch, {PHOTOS} photos, FC 576-512-10, batch {BATCH}, JVM engine",
            Sample(tuple(pair[0] for pair in pairs)),
            Sample(tuple(pair[1] for pair in pairs)),
            MOST,
            "the Python ExecuTorch engine",
        ),
        against_floor(
            f"predictions for {PHOTOS} photos while a training runs, FC 576-512-10, JVM engine",
            Sample(tuple(turn[0] for turn in turns)),
            Sample(tuple(turn[1] for turn in turns)),
            MOST_BESIDE,
            "the same alone",
        ),
    ]


@contextmanager
def _jvm(folder: Path, cores: set[int]) -> Iterator[Ask]:
    classes = maven.class_path("jvm-engine", tests=True)
    java = ["java", "-Xmx256m", "-cp", classes, "org.fedlens.jvm.EpochBench", str(folder)]
    bound = ["taskset", "-c", ",".join(map(str, sorted(cores)))]
    process = subprocess.Popen([*bound, *java], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answers = process.stdin, process.stdout

    def ask(line: str) -> list[str]:
        asked.write(f"{line}\n")
        asked.flush()
        answer = answers.readline().split()
        if not answer:
            raise RuntimeError(f"the JVM has ended with status {process.wait(30)}")
        return answer

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
