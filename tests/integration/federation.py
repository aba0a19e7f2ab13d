"""A small federation: digits dealt out to clients, a model that trains in milliseconds, the real server."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedlens_edge_client.client.client import EdgeClient
from fedlens_edge_client.client.events import Event
from fedlens_edge_client.client.http_transport import HttpTransport, trust
from fedlens_edge_client.client.retrying import Backoff
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.storage.album import AlbumSnapshot
from fedlens_edge_client.storage.folder_album import FolderAlbum
from fedlens_export.exporting import Training, whole_model_bundle
from fedlens_proto import keyed_hash
from fedlens_proto.manifest import Bundle
from tests.integration.processes import ServerProcess

SIDE = 8
FLEET_KEY = bytes(range(32))
TASK_SEED = "5e" * 32
OnEvent = Callable[[int, Event], None]


def tiny_bundle(folder: Path) -> Bundle:
    """Digits of 8 x 8 pixels, one linear layer."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 10))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    training = Training(class_names=tuple(str(digit) for digit in range(10)), batch=16)
    return whole_model_bundle(folder, model, training, SIDE, name="tiny")


@dataclass(frozen=True)
class ShareAlbum:
    """Every n-th photo of a folder: what one of n clients has."""

    folder: FolderAlbum
    index: int
    clients: int

    def photos(self, round_number: int) -> AlbumSnapshot:
        snapshot = self.folder.photos(round_number)
        return AlbumSnapshot(photos=snapshot.photos[self.index :: self.clients], skipped=snapshot.skipped)


def secret(index: int) -> bytes:
    """The identity of one of the clients, the same in every run."""
    return keyed_hash.fleet_secret(FLEET_KEY, 1, index)


def client(
    server: ServerProcess,
    folder: Path,
    photos: Path,
    index: int,
    clients: int,
    on_event: Callable[[Event], None] | None = None,
    executor: ThreadPoolExecutor | None = None,
) -> EdgeClient:
    """Client `index` of `clients`, with its state in `folder`."""
    backoff = Backoff(first_s=0.02, most_s=0.2, give_up_after_s=60)
    transport = HttpTransport(server.url, secret(index), ssl_context=trust(server.ca), backoff=backoff)
    return EdgeClient(
        server.url,
        folder / f"client-{index}",
        ShareAlbum(FolderAlbum(photos), index, clients),
        enrolment_token=server.token("trainer"),
        secret=secret(index),
        transport=transport,
        engine_factory=TorchEngine,
        on_event=on_event,
        executor=executor,
    )


async def run_clients(
    server: ServerProcess, folder: Path, photos: Path, clients: int, on_event: OnEvent = lambda index, event: None
) -> None:
    """Run all clients until the server has no more work for them."""

    async def run(index: int, executor: ThreadPoolExecutor) -> None:
        def tell(event: Event) -> None:
            on_event(index, event)

        async with client(server, folder, photos, index, clients, tell, executor) as member:
            await member.run()

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
