"""A state in PostgreSQL and a bucket: both servers on this machine. PostgreSQL waits for its disk, versitygw does not.

Floor: the same with SQLite and a folder, in turns. What waits for the disk is a real bucket's own affair, and its
network's time is not in it.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from bench import many_clients, models, prepared_requests, small_rounds
from bench.row import Row, Sample, Skipped, against_floor, against_target, differences
from bench.server_process import serving
from fedlens_proto import blob, keyed_hash
from fedlens_server.init import DATA
from fedlens_server.store import StateAddress, Store
from tests.server.elsewhere import Cluster, Gateway, elsewhere, running_cluster, running_gateway

CLIENTS, ROUNDS, TURNS = 500, 5, 2
# Name: (layers, most times the floor). Blobs of up to 64 KiB are rows, larger ones objects.
HEADS: dict[str, tuple[dict[str, tuple[int, ...]], float]] = {
    "10 kB (rows)": (many_clients.HEAD, 2.0),
    "200 kB (objects)": ({"fc.bias": (10,), "fc.weight": (10, 5000)}, 3.0),
}
UPDATES_A_SECOND, REPEATS = 500, 5


@contextmanager
def places() -> Iterator[tuple[Cluster, Gateway]]:
    """A durable PostgreSQL server, and an S3 server whose credentials this process has.

    Raises:
        Skipped: One of both is not installed.
    """
    with ExitStack() as held:
        try:
            cluster, gateway = (
                held.enter_context(running_cluster(durable=True)),
                held.enter_context(running_gateway()),
            )
        except pytest.skip.Exception as error:
            raise Skipped(str(error)) from error
        held.enter_context(patch.dict(os.environ, gateway.environment()))
        yield cluster, gateway


def measure(folder: Path) -> Iterator[Row]:
    """Commit to commit with both kinds of blobs, and updates a second."""
    with places() as (cluster, gateway):
        for i, (name, (layers, most)) in enumerate(HEADS.items()):
            yield _commits(folder / f"{i}", name, layers, most, cluster, gateway)
        yield _updates(folder / "updates", cluster, gateway)


def _commits(
    folder: Path,
    name: str,
    layers: dict[str, tuple[int, ...]],
    most: float,
    cluster: Cluster,
    gateway: Gateway,
) -> Row:
    raw, bundle = blob.encode(models.tensors(layers, seed=2)), models.inert_bundle(layers, folder / "bundle")

    def commits(state: StateAddress) -> list[float]:
        with serving(state.folder.parent, state=state) as server:
            server.create_task(bundle, {"rounds": ROUNDS, "population": CLIENTS})
            asyncio.run(small_rounds.take_part(server, CLIENTS, raw, state.folder.parent))
            return [1000 * gap for gap in differences(server.round_ends())]

    floor, found = list[float](), list[float]()
    for turn in range(TURNS):
        floor += commits(StateAddress(folder=folder / f"here {turn}" / DATA))
        found += commits(elsewhere(folder / f"there {turn}" / DATA, cluster, gateway))
    title = f"commit to commit, trivial work, {CLIENTS} clients, head of {name}, PostgreSQL and S3"
    return against_floor(title, Sample(tuple(floor)), Sample(tuple(found)), most, "SQLite and a folder")


def _updates(folder: Path, cluster: Cluster, gateway: Gateway) -> Row:
    """As many clients as `many_clients.throughput` has, with all cores for everybody."""
    state = elsewhere(folder / DATA, cluster, gateway)
    bundle = models.inert_bundle(many_clients.HEAD, folder / "bundle")
    with closing(Store.open(state)) as store:
        ids = [keyed_hash.client_id(prepared_requests.secret(i)) for i in range(many_clients.UPDATES)]
        prepared_requests.enrol(store, ids)
    with serving(folder, many_clients.LIMITS, state) as server:
        settings = {"rounds": 1000, "goal": many_clients.UPDATES, "min_reports": many_clients.UPDATES, "rest": 0}
        server.create_task(bundle, many_clients.ARRIVALS | settings)
        bursts = [asyncio.run(many_clients.updates(server)) for _ in range(REPEATS)]
    return against_target(
        "updates of 10 kB alone, PostgreSQL, server on all cores",
        *(Sample((0.0,)), Sample(tuple(count / lasted for count, lasted in bursts)), UPDATES_A_SECOND, "none"),
        unit="a second",
        digits=0,
        at_least=True,
    )
