"""Commit to commit, with clients that do no work: long poll, one process for all clients.

Floor: as many clients of a bare HTTP server that keeps the updates in memory, adds them up and syncs the sum.
"""

import asyncio
import os
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import models, trivial_client
from bench.bare_server import bare_serving, take_part_barely
from bench.row import Row, Sample, against_target, differences
from bench.server_process import Server, cpu_seconds, serving
from fedlens_proto import blob

LINEAR = "linear head"
LAYERS = "head of two layers"  # of 1 MB, which is checked and measured in threads
# By shapes and clients: (rounds, target in milliseconds).
SIZES = {(LINEAR, 50): (30, 60.0), (LINEAR, 500): (10, 600.0), (LAYERS, 10): (30, 80.0)}
SHAPES = {LINEAR: models.LINEAR_HEAD, LAYERS: models.HIDDEN_LAYER}
SELECTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "drawn": lambda clients: {"population": clients},
    "arrivals": lambda clients: {"goal": clients, "over_selection": 1.0, "canary": 0},
}


def measure(folder: Path) -> Iterator[Row]:
    """One row for each number of clients and each way to select them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for shapes, clients in SIZES:
        for selection in SELECTIONS:
            yield _measure(shapes, clients, selection, folder / f"{clients}-{selection}")


def _measure(shapes: str, clients: int, selection: str, folder: Path) -> Row:
    rounds, target = SIZES[shapes, clients]
    raw = blob.encode(models.tensors(SHAPES[shapes], seed=2))
    settings = {"rounds": rounds, "selection": selection} | SELECTIONS[selection](clients)
    with bare_serving(folder / "bare", clients, len(raw)) as (url, _, ended):
        asyncio.run(take_part_barely(url, clients, rounds, raw, shared=True))
    bundle = models.inert_bundle(SHAPES[shapes], folder / "bundle")
    with serving(folder / "server") as server:
        server.create_task(bundle, settings)
        before = os.times(), cpu_seconds(server.pid)
        asyncio.run(take_part(server, clients, raw, folder))
        after = os.times(), cpu_seconds(server.pid)
        commits = Sample(tuple(1000 * gap for gap in differences(server.round_ends())))
    own = sum(after[0][:2]) - sum(before[0][:2])
    note = (
        f"processor time a client and round: server {1000 * (after[1] - before[1]) / rounds / clients:.2f} ms, "
        f"clients {1000 * own / rounds / clients:.2f} ms (enrolment included)"
    )
    floor = Sample(tuple(1000 * gap for gap in differences(ended)))
    name = f"commit to commit, trivial work, {shapes}, {clients} clients, {selection}"
    return against_target(name, floor, commits, target, "bare HTTP server and client", unit="ms", digits=1, note=note)


async def take_part(server: Server, clients: int, raw: bytes, folder: Path) -> None:
    """Have so many clients answer every round of the server's task with these bytes, but for the last four."""

    def different(client: int, round_number: int) -> bytes:
        # Another last element for every client and round, so that no two uploads are the same bytes.
        return raw[:-4] + struct.pack("<f", client + round_number / 1000)

    cache = trivial_client.DownloadOnce(folder)
    await asyncio.gather(
        *(trivial_client.take_part(server.url, server.trainer_token, i, cache, different) for i in range(clients))
    )
