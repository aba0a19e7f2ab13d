"""Rounds of a 44.7 MB model: how long they take with 10 clients, and what each further client costs in memory.

Every client downloads the model, checks its digest, and uploads its own blob, all at the same time. Floors: the same
transfers with a bare HTTP server that streams, syncs and adds up.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import models, trivial_client
from bench.bare_server import bare_serving, take_part_barely
from bench.row import Row, Sample, against_target, differences
from bench.server_process import Server, serving, status_mb
from bench.small_rounds import SELECTIONS

FEW, MANY = 10, 40
ROUNDS = 6
MEMORY_ROUNDS = 2
MOST_SECONDS = 2.5
MOST_MB = 4.5


def latency(folder: Path) -> Iterator[Row]:
    """Commit to commit with ten clients, a row for each way to select them."""
    blobs = models.write_blobs(models.resnet18(), folder / "blobs", 50)
    size = blobs[0].stat().st_size
    with bare_serving(folder / "bare", FEW, size) as (url, _, ended):
        asyncio.run(take_part_barely(url, FEW, ROUNDS, blobs, shared=False))
    floor = Sample(differences(ended))
    for selection in SELECTIONS:
        with _task(folder / selection, FEW, ROUNDS, selection) as server:
            asyncio.run(_take_part(server, FEW, blobs, folder))
            commits = Sample(differences(server.round_ends()))
        name = f"round latency, 44.7 MB model, 10 clients, {selection}"
        yield against_target(name, floor, commits, MOST_SECONDS, "bare HTTP server and client", unit="s", digits=2)


def memory(folder: Path) -> Iterator[Row]:
    """Server peak memory for each client more, between ten and forty, a row for each way to select them."""
    blobs = models.write_blobs(models.resnet18(), folder / "blobs", 50)
    size = blobs[0].stat().st_size
    bare: dict[int, float] = {}
    for clients in (FEW, MANY):
        with bare_serving(folder / f"bare {clients}", clients, size) as (url, pid, _):
            asyncio.run(take_part_barely(url, clients, MEMORY_ROUNDS, blobs, shared=False))
            bare[clients] = status_mb(pid, "VmHWM")
    for selection in SELECTIONS:
        peak: dict[int, float] = {}
        anonymous: dict[int, float] = {}
        for clients in (FEW, MANY):
            with _task(folder / f"{selection} {clients}", clients, MEMORY_ROUNDS, selection) as server:
                with _watching(server.pid) as seen:
                    asyncio.run(_take_part(server, clients, blobs, folder))
                peak[clients], anonymous[clients] = status_mb(server.pid, "VmHWM"), max(seen)
        note = (
            f"peak {peak[FEW]:.0f} MB with {FEW} clients, {peak[MANY]:.0f} MB with {MANY}; "
            f"without mapped files {anonymous[FEW]:.0f} and {anonymous[MANY]:.0f} MB"
        )
        yield against_target(
            f"server peak memory per extra client, 44.7 MB model, 10 against 40 clients, {selection}",
            Sample(((bare[MANY] - bare[FEW]) / (MANY - FEW),)),
            Sample(((peak[MANY] - peak[FEW]) / (MANY - FEW),)),
            MOST_MB,
            "bare HTTP server",
            unit="MB",
            digits=2,
            note=note,
        )


@contextmanager
def _task(folder: Path, clients: int, rounds: int, selection: str) -> Iterator[Server]:
    bundle = models.inert_bundle(models.resnet18(), folder / "bundle")
    with serving(folder / "server") as server:
        server.create_task(bundle, {"rounds": rounds, "selection": selection} | SELECTIONS[selection](clients))
        yield server


@contextmanager
def _watching(pid: int, every_s: float = 0.02) -> Iterator[list[float]]:
    """Sample a process's memory that is no mapped file, in MB."""
    seen = [status_mb(pid, "RssAnon")]
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(every_s):
            seen.append(status_mb(pid, "RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        stopped.set()
        watcher.join()


async def _take_part(server: Server, clients: int, blobs: list[Path], folder: Path) -> None:
    def shifted(client: int, round_number: int) -> Path:
        # Not the blob of the round before, which the server still has.
        return blobs[(client + clients * round_number) % len(blobs)]

    await trivial_client.download_each(server, clients, blobs, folder, shifted)
