"""Same seed, same bytes, though clients enrol and report concurrently."""

from pathlib import Path

import numpy as np

from fedlens_edge_client.client.events import Event, RoundReported
from fedlens_proto.blob import Blob
from tests.integration import federation
from tests.integration.processes import ServerProcess

CLIENTS = 5
ROUNDS = 3


async def run(server: ServerProcess, folder: Path, photos: Path, bundle: Path, name: str) -> tuple[bytes, list[int]]:
    """The final blob of a task, and the clients in the order in which they reported."""
    order: list[int] = []

    def note(index: int, event: Event) -> None:
        if isinstance(event, RoundReported):
            order.append(index)

    federation.create_task(server, bundle, rounds=ROUNDS, clients=CLIENTS, name=name)
    await federation.run_clients(server, folder / name, photos, CLIENTS, note)
    return federation.final_blob(server, folder, name), order


async def test_two_runs_with_one_seed_give_the_same_bytes(
    tmp_path: Path, photos: Path, bundle: Path, server: ServerProcess
) -> None:
    first, reports = await run(server, tmp_path, photos, bundle, "first")
    second, _ = await run(server, tmp_path, photos, bundle, "second")

    assert len(reports) == CLIENTS * ROUNDS
    assert first == second


async def test_training_moves_the_weights_and_raises_the_accuracy(
    tmp_path: Path, photos: Path, bundle: Path, server: ServerProcess
) -> None:
    final, _ = await run(server, tmp_path, photos, bundle, "rising")

    weights = Blob.from_bytes(final)
    assert all(np.abs(tensor).max() > 0 for tensor in weights.values())
    rounds = server.task("show", "rising")["rounds"]
    assert rounds[-1]["personal"]["before"]["mean_accuracy"] > rounds[0]["personal"]["before"]["mean_accuracy"] + 0.2
