"""Rounds of studies in one process: ten clients, pFedSim's study, and 200 clients with little to train.

Floor: a plain PyTorch loop with the images in memory, which does each client's local work: evaluate, train, evaluate
again; then the mean. FedLens: a round of `fedlens compare`, from commit to commit: the round engine with its database,
whole clients with theirs, bundles' programs, checks of what is uploaded.

Both are taken in turns, and once more by the time of all processors together: a study's clients and its server do some
of their work beside the training, in other threads, which the clock on the wall does not show on a machine that idles.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bench.emulated_round import BATCH, CLASSES, CLIENTS, PER_CLASS, RATE, SIDE, train
from bench.fleets import draw_noise, fleet
from bench.head_training import Backbone
from bench.row import Row, Sample, against_floor, against_more, differences
from bench.server_process import whole_rounds
from fedlens.compare.run import running
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_export.exporting import ExportSpec, Training, export_bundle, frozen_backbone_bundle
from fedlens_export.models import backbones, whole_models

EPOCHS, UNMEASURED = 5, 2
FEATURES = 1280


@dataclass(frozen=True)
class _Network:
    """A network of which all layers are trained."""

    name: str
    rates: tuple[str, ...] = ("lr_extractor", "lr_classifier")
    shape: tuple[int, ...] = (3, SIDE, SIDE)

    def build(self) -> nn.Module:
        return whole_models.build(self.name, CLASSES, SIDE, seed=0)

    def export(self, folder: Path, names: tuple[str, ...], batch: int) -> None:
        export_bundle(folder, ExportSpec(model=self.name, class_names=names, batch=batch))


@dataclass(frozen=True)
class _Head(_Network):
    """A linear head on a frozen backbone, which is given features."""

    rates: tuple[str, ...] = ("lr_classifier",)
    shape: tuple[int, ...] = (FEATURES,)

    def build(self) -> nn.Module:
        return backbones.build_head(self.name, FEATURES, CLASSES, seed=0)

    def export(self, folder: Path, names: tuple[str, ...], batch: int) -> None:
        training = Training(class_names=names, batch=batch)
        frozen_backbone_bundle(folder, Backbone(FEATURES), self.build(), training, input_size=SIDE)


@dataclass(frozen=True)
class _Case:
    """A study's round: `members` of `clients` with so many photos a class train and are evaluated."""

    name: str
    network: _Network
    settings: Mapping[str, object]
    clients: int
    members: int
    per_class: int
    test_per_class: int
    rounds: int
    turns: int  # rather than blocks, so that a change of the machine's speed meets both alike
    most: float  # times the floor; or ms more than it
    is_beside: bool = False  # `most` is in ms, for each member
    epochs: int = EPOCHS
    batch: int = BATCH
    classes: int = CLASSES  # that clients have photos of


CASES = (
    _Case(
        name=f"a study's LeNet-5 round, {CLIENTS} clients x {PER_CLASS * CLASSES} images, batch {BATCH}, 5 epochs",
        network=_Network("lenet5"),
        settings={"method": "fedavg"},
        clients=CLIENTS,
        members=CLIENTS,
        per_class=PER_CLASS,
        test_per_class=1,
        rounds=6,
        turns=5,
        most=1.1,
    ),
    # Half of its rounds warm up. Of the paper's 200, these are the first 13: later models are mixes of more.
    _Case(
        name="a round of the pFedSim study's first 13, 10 of 100 clients x (300 + 300) images, batch 32, 5 epochs",
        network=_Network("lenet5_bn"),
        settings={"method": "pfedsim", "cohort": 10, "batch_norm": "local_statistics"},
        clients=100,
        members=10,
        per_class=30,
        test_per_class=30,
        rounds=13,
        turns=2,
        most=1.2,
    ),
    _Case(
        # Full batches: programs have a fixed one, and what they compute for the empty part of another is their own.
        name="a client-round of a study beside its training, LeNet-5, 200 clients x 40 images, batch 10, 1 epoch",
        network=_Network("lenet5"),
        settings={"method": "fedavg"},
        clients=200,
        members=200,
        per_class=4,
        test_per_class=1,
        rounds=6,
        turns=2,
        epochs=1,
        batch=10,
        most=4.0,
        is_beside=True,
    ),
    _Case(
        name=f"a client-round of a study beside its training, head {FEATURES}-10, 200 clients x 32 photos' features, "
        "batch 16, 1 epoch",
        network=_Head("linear"),
        settings={"method": "fedavg"},
        clients=200,
        members=200,
        classes=8,
        per_class=4,
        test_per_class=1,
        rounds=6,
        turns=2,
        epochs=1,
        batch=16,
        most=2.0,
        is_beside=True,
    ),
)


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
        # A study may have done the clients' work of the next round when it tells a round's end, so the last is short.
        self._walls += [1000 * value for value in differences(walls)[UNMEASURED:-1]]
        self._processors += [1000 * value for value in differences(processors)[UNMEASURED:-1]]

    def each(self, members: int) -> Sample:
        """The time by the clock for each of so many members."""
        return Sample(tuple(wall / members for wall in self._walls))

    @property
    def wall(self) -> Sample:
        return Sample(tuple(self._walls))

    @property
    def processor(self) -> Sample:
        return Sample(tuple(self._processors))


def measure(folder: Path) -> Iterator[Row]:
    """One row for each case."""
    keep_freed_memory()
    torch.set_num_threads(1)
    for case in CASES:
        yield _measured(folder / f"{case.network.name} {case.clients}", case)


def _measured(folder: Path, case: _Case) -> Row:
    generator = np.random.default_rng(0)
    names = tuple(f"class {label}" for label in range(CLASSES))
    for side, count in (("train", case.per_class), ("test", case.test_per_class)):
        for name in names[: case.classes]:
            draw_noise(folder / "photos" / side / name, count, SIDE, generator)
    case.network.export(folder / "bundle", names, case.batch)
    floor, study = _Times(), _Times()
    for number in range(case.turns):
        with floor.turn() as ended:
            _plain(case, ended)
        with study.turn() as ended:
            _study(folder, case, f"study {number}", ended)
    beside = study.wall.median - floor.wall.median
    by_processor = study.processor.median / floor.processor.median
    note = f"{beside:.0f} ms a round beside the local work; {by_processor:.2f}x by processor time"
    floor_is = "plain loop with the same local work"
    if case.is_beside:
        alone, each = floor.each(case.members), study.each(case.members)
        return against_more(case.name, alone, each, case.most, floor_is, unit="ms", digits=1, note=note)
    return against_floor(case.name, floor.wall, study.wall, case.most, floor_is, note=note)


def _study(folder: Path, case: _Case, state: str, ended: Callable[[], None]) -> None:
    given = {"per_class": case.per_class, "test_per_class": case.test_per_class}
    partition = Partition(name=PartitionName.CAMERA_IID, seed=0, clients=case.clients, **given)
    where = {"server": "", "token": "trainer", "workers": 1, "shares_downloads": False}
    members = fleet(PhotoPool.open(folder / "photos"), partition, case.clients, folder / state, **where)
    settings = {
        "rounds": case.rounds,
        "population": case.clients,
        "epochs": case.epochs,
        "hyper": dict.fromkeys(case.network.rates, RATE),
        **case.settings,
    }
    bundles = (folder / "bundle",)
    found = asyncio.run(running.run(members, json.dumps(settings), bundles, on_round=lambda number, seconds: ended()))
    whole_rounds(found.shown)


def _plain(case: _Case, ended: Callable[[], None]) -> None:
    torch.manual_seed(0)
    inputs = torch.rand(case.members, case.per_class * case.classes, *case.network.shape)
    labels = torch.randint(CLASSES, inputs.shape[:2])
    test = torch.rand(case.test_per_class * case.classes, *case.network.shape)
    model = case.network.build()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(case.rounds):
        updates = [_local_work(model, weights, x, y, test, case) for x, y in zip(inputs, labels, strict=True)]
        weights = {name: torch.as_tensor(np.mean([update[name] for update in updates], axis=0)) for name in weights}
        ended()


def _local_work(
    model: nn.Module, start: dict[str, Tensor], images: Tensor, labels: Tensor, test: Tensor, case: _Case
) -> dict[str, np.ndarray]:
    model.load_state_dict(start)
    _evaluate(model, test, case.batch)
    model.train()
    trained = train(model, start, images, labels, case.epochs, case.batch)
    _evaluate(model, test, case.batch)
    return trained


def _evaluate(model: nn.Module, test: Tensor, size: int) -> int:
    model.eval()
    with torch.inference_mode():
        right = [int((model((batch - 0.5) * 4).argmax(1) == 0).sum()) for batch in torch.split(test, size)]
    return sum(right)
