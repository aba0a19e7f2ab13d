"""Rounds of LeNet-5 in a study: 10 clients of 250 images each, batch 32, five epochs, in one process.

Floor: a plain PyTorch loop with the images in memory, which does each client's local work: evaluate on 10 photos,
train, evaluate again; then the mean. FedLens: a round of `fedlens compare`, from commit to commit: the round engine
with its database, whole clients with theirs, bundles' programs, checks of what is uploaded.
"""

import asyncio
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.emulated_round import BATCH, CLASSES, CLIENTS, PER_CLASS, RATE, SIDE, draw_photos, train
from bench.row import Row, Sample, against_floor
from fedlens.compare import running
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_edge_client.faults import FaultPlan
from fedlens_edge_client.fleet.config import FleetConfig
from fedlens_edge_client.regimes import PhotoPool, Regime, RegimeName
from fedlens_export import models
from fedlens_export.exporting import ExportSpec, export_bundle

EPOCHS, ROUNDS, UNMEASURED = 5, 9, 2


def measure(folder: Path) -> list[Row]:
    """The one row."""
    keep_freed_memory()
    torch.set_num_threads(1)
    draw_photos(folder / "photos")
    names = tuple(sorted(path.name for path in (folder / "photos" / "train").iterdir()))
    export_bundle(folder / "bundle", ExportSpec(model="lenet5", class_names=names, batch=BATCH))
    floor = _plain()
    study = _study(folder)
    name = f"a study's LeNet-5 round, {CLIENTS} clients x {PER_CLASS * CLASSES} images, batch {BATCH}, {EPOCHS} epochs"
    note = f"{study.median - floor.median:.0f} ms a round beside the local work"
    return [against_floor(name, floor, study, 1.1, "plain loop with the same local work", note=note)]


def _study(folder: Path) -> Sample:
    fleet = FleetConfig(
        server="",
        clients=CLIENTS,
        pool=PhotoPool.open(folder / "photos"),
        regime=Regime(name=RegimeName.CAMERA_IID, seed=0, clients=CLIENTS, per_class=PER_CLASS, test_per_class=1),
        plan=FaultPlan(),
        key=bytes(32),
        state=folder / "study",
        workers=1,
        token="trainer",
        shares_downloads=False,
    )
    rates = {"lr_extractor": RATE, "lr_classifier": RATE}
    settings = {"method": "fedavg", "rounds": ROUNDS, "population": CLIENTS, "epochs": EPOCHS, "hyper": rates}
    times: list[float] = []
    task = running.run(
        fleet,
        json.dumps(settings),
        (folder / "bundle",),
        on_round=lambda number, seconds: times.append(1000 * seconds),
    )
    asyncio.run(task)
    return Sample(tuple(times[UNMEASURED:]))


def _plain() -> Sample:
    torch.manual_seed(0)
    images = torch.rand(CLIENTS, PER_CLASS * CLASSES, 3, SIDE, SIDE)
    labels = torch.randint(CLASSES, (CLIENTS, PER_CLASS * CLASSES))
    test = torch.rand(CLASSES, 3, SIDE, SIDE)
    weights = models.build("lenet5", CLASSES, SIDE, seed=0).state_dict()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        updates = [_local_work(weights, x, y, test) for x, y in zip(images, labels, strict=True)]
        weights = {name: torch.from_numpy(np.mean([update[name] for update in updates], axis=0)) for name in weights}
        times.append(1000 * (time.perf_counter() - start))
    return Sample(tuple(times[UNMEASURED:]))


def _local_work(start: dict[str, Tensor], images: Tensor, labels: Tensor, test: Tensor) -> dict[str, np.ndarray]:
    _evaluate(start, test)
    trained = train(start, images, labels, EPOCHS)
    _evaluate({name: torch.from_numpy(value) for name, value in trained.items()}, test)
    return trained


def _evaluate(weights: dict[str, Tensor], test: Tensor) -> int:
    model = models.build("lenet5", CLASSES, SIDE, seed=0)
    model.load_state_dict(weights)
    with torch.inference_mode():
        return int((model((test - 0.5) * 4).argmax(1) == 0).sum())
