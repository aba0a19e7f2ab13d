"""A round of LeNet-5 with 10 emulated clients of 250 images each, batch 32, in two worker processes.

Floor: a plain PyTorch loop, split over two processes that hold the images in memory and five clients each; per round
they get the weights by a pipe, train, and send theirs back to be averaged. FedLens: commit to commit of a real server
and a real fleet, with everything that these do: HTTP, checks, outbox, evaluation before and after on 10 photos.
"""

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.fleets import draw_noise, fleet
from bench.row import Row, Sample, against_floor, differences
from bench.server_process import serving
from fedlens_edge_client.emulation.fleet.running import run_fleet
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.models import whole_models
from fedlens_proto.manifest import Bundle

CLIENTS, PER_CLASS, CLASSES, BATCH, SIDE, WORKERS = 10, 25, 10, 32, 32, 2
RATE = 0.01
ROUNDS, UNMEASURED = 9, 2
# One pass over the photos, and the five of the pFedSim paper's LeNet-5 runs.
EPOCHS = (1, 5)
MOST_TIMES = {1: 1.4, 5: 1.1}


def measure(folder: Path) -> Iterator[Row]:
    """One row for each number of epochs."""
    photos = folder / "photos"
    draw_photos(photos)
    names = tuple(sorted(path.name for path in (photos / "train").iterdir()))
    bundle = export_bundle(folder / "bundle", ExportSpec(model="lenet5", class_names=names, batch=BATCH))
    for epochs in EPOCHS:
        before = _plain(epochs)
        emulated = fleet_rounds(epochs, bundle, photos, folder / f"{epochs} epochs")
        # On both sides of the fleet, so that a change of the machine's speed meets both alike.
        floor = Sample(before.values + _plain(epochs).values)
        name = f"emulated LeNet-5 round, 10 clients x 250 images, batch 32, {epochs} epoch{'s'[: epochs - 1]}"
        overhead = emulated.median - floor.median
        note = f"{overhead:.0f} ms a round beside the plain loop's training"
        yield against_floor(name, floor, emulated, MOST_TIMES[epochs], "plain loop in two processes", note=note)


def draw_photos(folder: Path) -> None:
    """Noise as PNG: exactly the photos that every client draws, and one for tests, of each class."""
    generator = np.random.default_rng(0)
    for side, count in (("train", PER_CLASS), ("test", 1)):
        for label in range(CLASSES):
            draw_noise(folder / side / f"class {label}", count, SIDE, generator)


def fleet_rounds(epochs: int, bundle: Bundle, photos: Path, folder: Path) -> Sample:
    """Milliseconds of each round of a fleet over HTTP, without the first ones."""
    rates = {"lr_extractor": RATE, "lr_classifier": RATE}
    with serving(folder / "server") as server:
        server.create_task(bundle, {"rounds": ROUNDS, "population": CLIENTS, "epochs": epochs, "hyper": rates})
        partition = Partition(name=PartitionName.CAMERA_IID, seed=0, per_class=PER_CLASS, test_per_class=1)
        where = {"server": server.url, "token": server.trainer_token, "workers": WORKERS}
        run_fleet(fleet(PhotoPool.open(photos), partition, CLIENTS, folder / "fleet", **where))
        gaps = differences(server.round_ends())
    return Sample(tuple(1000 * gap for gap in gaps[UNMEASURED - 1 :]))


def _plain(epochs: int) -> Sample:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(WORKERS)]
    workers = [context.Process(target=_train_share, args=(there, epochs)) for _, there in pipes]
    for worker in workers:
        worker.start()
    weights = whole_models.build("lenet5", CLASSES, SIDE, seed=0).state_dict()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for here, _ in pipes:
            here.send({name: value.numpy() for name, value in weights.items()})
        updates = [update for here, _ in pipes for update in here.recv()]
        weights = {name: torch.from_numpy(np.mean([update[name] for update in updates], axis=0)) for name in updates[0]}
        times.append(1000 * (time.perf_counter() - start))
    for (here, _), worker in zip(pipes, workers, strict=True):
        here.send(None)
        worker.join()
    return Sample(tuple(times[UNMEASURED:]))


def _train_share(pipe: Connection, epochs: int) -> None:
    """Train half of the clients whenever weights arrive, until None does."""
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count = PER_CLASS * CLASSES
    model = whole_models.build("lenet5", CLASSES, SIDE, seed=0)
    images = torch.rand(CLIENTS // WORKERS, count, 3, SIDE, SIDE)
    labels = torch.randint(CLASSES, (CLIENTS // WORKERS, count))
    while (weights := pipe.recv()) is not None:
        start = {name: torch.from_numpy(value) for name, value in weights.items()}
        pipe.send([train(model, start, x, y, epochs) for x, y in zip(images, labels, strict=True)])


def train(
    model: nn.Module, start: dict[str, Tensor], images: Tensor, labels: Tensor, epochs: int, batch: int = BATCH
) -> dict[str, np.ndarray]:
    """Plain training of one client, whose weights it gives and `model` has at the end."""
    model.load_state_dict(start)
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for _ in range(epochs):
        for index in torch.split(torch.randperm(len(images)), batch):
            optimiser.zero_grad()
            logits = model((images[index] - 0.5) * 4)
            functional.cross_entropy(logits, labels[index]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}
