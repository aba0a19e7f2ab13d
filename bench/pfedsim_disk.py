"""The bytes pFedSim's server writes to disk in a round of 1,000 clients with models of 44.7 MB, 10 of them in it.

A real server over HTTP, whose kernel counts the bytes. All clients have taken part before and have been similar to 15
others, so that every download is a mix of 16 models; their models are 1,000 entries that share 16 files, as 44.7 GB
would only fill the disk. Floor: the uploads, which the state consists of.
"""

import asyncio
import os
import resource
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import numpy as np

from bench import models, trivial_client
from bench.row import Row, Sample, against_target, differences
from bench.server_process import Server, cpu_seconds, serving, written_bytes
from fedlens_edge_client.client.http_transport import HttpTransport
from fedlens_proto import keyed_hash
from fedlens_server.methods.arithmetic.client_matrix import SLOT
from fedlens_server.methods.pfedsim import MODEL, SIMILARITY
from fedlens_server.store import PendingBlob, Store, method_state

CLIENTS, MEMBERS, SHARED, ROUNDS = 1000, 10, 16, 4
MOST_MODELS = 12.0
TASK = 1


def measure(folder: Path) -> list[Row]:
    """One row."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    blobs = models.write_blobs(models.resnet18(), folder / "blobs", 50)
    size = blobs[0].stat().st_size
    bundle = models.inert_bundle(models.resnet18(), folder / "bundle")
    with serving(folder / "server") as server:
        settings = {"method": "pfedsim", "options": {"warm_up": 0}, "population": CLIENTS, "cohort": MEMBERS}
        server.create_task(bundle, settings | {"rounds": ROUNDS + 1})
        asyncio.run(_enrol(server))
    _season(folder / "server" / "data", blobs[:SHARED])
    written: list[int] = []
    with serving(folder / "server") as server:
        before = cpu_seconds(server.pid)
        asyncio.run(_take_part(server, blobs[SHARED:], folder, written))
        seconds = (cpu_seconds(server.pid) - before) / (ROUNDS + 1)
        gaps = differences(server.round_ends())
    each = Sample(differences([count / size for count in written]))
    return [
        against_target(
            f"pFedSim server disk written per round, {CLIENTS:,} clients of {size / 1e6:.1f} MB, "
            f"{MEMBERS} in the round",
            Sample((float(MEMBERS),)),
            each,
            MOST_MODELS,
            "the uploads",
            unit="models",
            digits=2,
            note=f"{np.median(gaps):.1f} s and {seconds:.1f} s of the server's processor time a round; "
            f"each download is a mix of {SHARED} models, computed twice",
        )
    ]


async def _enrol(server: Server) -> None:
    room = asyncio.Semaphore(50)

    async def one(i: int) -> None:
        async with room:
            transport = HttpTransport(server.url, keyed_hash.fleet_secret(b"bench", 0, i))
            await transport.enrol(server.trainer_token, trivial_client.ABLE)
            await transport.close()

    await asyncio.gather(*(one(i) for i in range(CLIENTS)))


def _season(data: Path, blobs: list[Path]) -> None:
    """Give all clients a model, and each those of its group as similar ones, as many rounds would have done."""
    store = Store.open(data)
    try:
        digests = [sha256(path.read_bytes()).digest() for path in blobs]
        waiting = [data / "blobs" / "incoming" / path.name for path in blobs]
        for path, link in zip(blobs, waiting, strict=True):
            os.link(path.resolve(), link)
        stored = [
            PendingBlob(digest, link.stat().st_size, path=link) for digest, link in zip(digests, waiting, strict=True)
        ]
        ids = sorted(keyed_hash.client_id(keyed_hash.fleet_secret(b"bench", 0, i)) for i in range(CLIENTS))
        groups = np.arange(CLIENTS) // SHARED
        matrix = np.where(groups[:, None] == groups, np.float32(0.5), np.float32(0.0))
        np.fill_diagonal(matrix, 1.0)
        old, _ = method_state.load(store, TASK)
        with ExitStack() as open_blobs:
            for blob in stored:
                store.submit(lambda transaction, blob=blob: transaction.place(blob)).result()  # type: ignore[misc]
            tensors = [store.tensors(digest) for digest in digests]
            entries = {client: {SLOT: k, MODEL: tensors[k % SHARED]} for k, client in enumerate(ids)}
            new = old.with_clients(entries).with_shared(**{SIMILARITY: matrix})
            prepared = method_state.prepare(store, old, new, open_blobs)
            store.submit(lambda transaction: method_state.save(transaction, TASK, prepared)).result()
    finally:
        store.close()


async def _take_part(server: Server, blobs: list[Path], folder: Path, written: list[int]) -> None:
    """Have all clients take part to the end, and note what was written when each round begins."""

    def shifted(client: int, round_number: int) -> Path:
        if len(written) < round_number:
            written.append(written_bytes(server.pid))
        return blobs[(client + MEMBERS * round_number) % len(blobs)]

    await trivial_client.download_each(server, CLIENTS, blobs, folder, shifted)
    written.append(written_bytes(server.pid))
