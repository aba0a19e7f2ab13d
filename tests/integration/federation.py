"""A small federation: digits dealt out to clients, a model that trains in milliseconds, the real server."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedlens_edge_client.client.events import Event
from fedlens_edge_client.emulation.partitions import Partition, PartitionName
from fedlens_export.exporting import Training, whole_model_bundle
from fedlens_proto import keyed_hash
from fedlens_proto.manifest import Bundle
from tests.integration import two_drivers
from tests.integration.processes import ServerProcess

SIDE = 8
FLEET_KEY = bytes(range(32))
TASK_SEED = "5e" * 32
CODECS = ("--codec", "int8", "--difference", "--download-codec", "int8", "--download-difference")
OnEvent = Callable[[int, Event], None]


def digits_bundle(folder: Path, model: nn.Module, name: str, **training: Any) -> Bundle:
    """The bundle of a network for digits of 8 x 8 pixels."""
    given = Training(class_names=tuple(str(digit) for digit in range(10)), batch=16, **training)
    return whole_model_bundle(folder, model, given, SIDE, name=name)


def tiny_bundle(folder: Path) -> Bundle:
    """One linear layer."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 10))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return digits_bundle(folder, model, "tiny")


def secret(index: int) -> bytes:
    """The identity of one of the clients, the same in every run."""
    return keyed_hash.fleet_secret(FLEET_KEY, 1, index)


async def run_clients(
    server: ServerProcess, folder: Path, photos: Path, clients: int, on_event: OnEvent = lambda index, event: None
) -> None:
    """Run all clients, which share the photos, until the server has no more work for them."""
    shares = Partition(name=PartitionName.DIRICHLET, seed=3, clients=clients, beta=1000)
    fleet = two_drivers.fleet(folder, photos, clients, partition=shares)

    async def run(index: int, executor: ThreadPoolExecutor) -> None:
        tell = partial(on_event, index)
        async with two_drivers.member(server, fleet, index, executor=executor, on_event=tell) as client:
            await client.run()

    with ThreadPoolExecutor(1) as executor:
        await asyncio.gather(*(run(index, executor) for index in range(clients)))


def create_task(
    server: ServerProcess, bundle: Path, *more: str, rounds: int, clients: int, name: str = "digits"
) -> None:
    """A FedAvg task in which every client takes part in every round; `more` are options of `fedlens task create`."""
    numbers = ["--rounds", str(rounds), "--population", str(clients), "--min-reports", str(clients)]
    server.task("create", name, "--bundle", str(bundle), "--seed", TASK_SEED, "--deadline", "600", *numbers, *more)


def final_blob(server: ServerProcess, folder: Path, name: str = "digits") -> bytes:
    """The global model as the operator gets it."""
    file = folder / f"{name}.blob"
    server.task("model", name, "--out", str(file))
    return file.read_bytes()
