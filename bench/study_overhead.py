"""Rounds of LeNet-5 in a study: 10 clients of 250 images each, batch 32, five epochs, in one process.

Floor: a plain PyTorch loop with the images in memory, which does each client's local work: evaluate on 10 photos,
train, evaluate again; then the mean. FedLens: a round of `fedlens compare`, from commit to commit: the round engine
with its database, whole clients with theirs, bundles' programs, checks of what is uploaded.

Both are taken in turns, and once more by the time of all processors together: a study's clients and its server do some
of their work beside the training, in other threads, which the clock on the wall does not show on a machine that idles.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bench.emulated_round import BATCH, CLASSES, CLIENTS, PER_CLASS, RATE, SIDE, draw_photos, train
from bench.fleets import fleet
from bench.row import Row, Sample, against_floor, differences
from fedlens.compare.run import running
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.models import whole_models

# Turns rather than blocks, so that a change of the machine's speed meets both alike.
TURNS = 5
EPOCHS, ROUNDS, UNMEASURED = 5, 5, 2


class _Times:
    """The time that rounds took, in ms: by the clock, and of all processors together."""

    def __init__(self) -> None:
        self._walls: list[float] = []
        self._processors: list[float] = []

    @contextmanager
    def turn(self) -> Iterator[Callable[[], None]]:
        """Gives what is to be called at the end of each round of one turn."""
        walls, processors = [time.perf_counter()], [time.process_time()]

        def ended() -> None:
            walls.append(time.perf_counter())
            processors.append(time.process_time())

        yield ended
        self._walls += [1000 * value for value in differences(walls)[UNMEASURED:]]
        self._processors += [1000 * value for value in differences(processors)[UNMEASURED:]]

    @property
    def wall(self) -> Sample:
        return Sample(tuple(self._walls))

    @property
    def processor(self) -> Sample:
        return Sample(tuple(self._processors))


def measure(folder: Path) -> list[Row]:
    """The one row."""
    keep_freed_memory()
    torch.set_num_threads(1)
    draw_photos(folder / "photos")
    names = tuple(sorted(path.name for path in (folder / "photos" / "train").iterdir()))
    export_bundle(folder / "bundle", ExportSpec(model="lenet5", class_names=names, batch=BATCH))
    floor, study = _Times(), _Times()
    for number in range(TURNS):
        with floor.turn() as ended:
            _plain(ended)
        with study.turn() as ended:
            _study(folder, f"study {number}", ended)
    name = f"a study's LeNet-5 round, {CLIENTS} clients x {PER_CLASS * CLASSES} images, batch {BATCH}, {EPOCHS} epochs"
    beside = study.wall.median - floor.wall.median
    by_processor = study.processor.median / floor.processor.median
    note = f"{beside:.0f} ms a round beside the local work; {by_processor:.2f}x by processor time"
    return [against_floor(name, floor.wall, study.wall, 1.1, "plain loop with the same local work", note=note)]


def _study(folder: Path, state: str, ended: Callable[[], None]) -> None:
    partition = Partition(name=PartitionName.CAMERA_IID, seed=0, clients=CLIENTS, per_class=PER_CLASS, test_per_class=1)
    where = {"server": "", "token": "trainer", "workers": 1, "shares_downloads": False}
    members = fleet(PhotoPool.open(folder / "photos"), partition, CLIENTS, folder / state, **where)
    rates = {"lr_extractor": RATE, "lr_classifier": RATE}
    settings = {"method": "fedavg", "rounds": ROUNDS, "population": CLIENTS, "epochs": EPOCHS, "hyper": rates}
    bundles = (folder / "bundle",)
    asyncio.run(running.run(members, json.dumps(settings), bundles, on_round=lambda number, seconds: ended()))


def _plain(ended: Callable[[], None]) -> None:
    torch.manual_seed(0)
    images = torch.rand(CLIENTS, PER_CLASS * CLASSES, 3, SIDE, SIDE)
    labels = torch.randint(CLASSES, (CLIENTS, PER_CLASS * CLASSES))
    test = torch.rand(CLASSES, 3, SIDE, SIDE)
    model = whole_models.build("lenet5", CLASSES, SIDE, seed=0)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(ROUNDS):
        updates = [_local_work(model, weights, x, y, test) for x, y in zip(images, labels, strict=True)]
        weights = {name: torch.from_numpy(np.mean([update[name] for update in updates], axis=0)) for name in weights}
        ended()


def _local_work(
    model: nn.Module, start: dict[str, Tensor], images: Tensor, labels: Tensor, test: Tensor
) -> dict[str, np.ndarray]:
    model.load_state_dict(start)
    _evaluate(model, test)
    trained = train(model, start, images, labels, EPOCHS)
    _evaluate(model, test)
    return trained


def _evaluate(model: nn.Module, test: Tensor) -> int:
    with torch.inference_mode():
        return int((model((test - 0.5) * 4).argmax(1) == 0).sum())
