"""FedAvg of 50 models of 11.2 M float32 on disk, page cache warm, against the least that any mean must do.

Floor: the same files, read in chunks that stay in a processor's cache, summed up in float32 by as many threads.
FedLens: the method's aggregation as the round engine calls it, tensor by tensor from stored blobs, weighted,
accumulated in float64.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from bench import models
from bench.row import Row, against_floor, in_turns
from fedlens_proto.blob import Array, Blob
from fedlens_proto.v1 import assignment_pb2
from fedlens_server.methods.arithmetic.linear_combination import Block, blocks_of, even_chunk, in_threads
from fedlens_server.methods.fedavg import with_mean
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import GLOBAL, Aggregate, Phase, State, Tools, Update
from fedlens_server.store import Location
from fedlens_server.store.incoming import opened
from fedlens_server.store.tensors import StoredTensors

CLIENTS = 50
REPEATS = 5


def measure(folder: Path) -> list[Row]:
    """One row."""
    paths = models.write_blobs(models.resnet18(), folder / "blobs", CLIENTS)
    summed, averaged = in_turns(REPEATS, lambda: _sum(paths), lambda: _aggregate(paths))
    name = "FedAvg of 50 x 11.2 M float32 blobs on disk, float64 accumulation"
    return [against_floor(name, summed, averaged, 1.5, "float32 sum", unit="s")]


def _sum(paths: list[Path]) -> Array:
    start = Blob.open(paths[0]).layout.offsets[0]
    count = (paths[0].stat().st_size - start) // 4
    total, chunk = np.zeros(count, np.float32), even_chunk(count)
    with ExitStack() as stack:
        files = [stack.enter_context(opened(path)) for path in paths]

        def add_up(blocks: Iterable[Block]) -> None:
            buffer = np.empty(chunk, np.float32)
            for block in blocks:
                acc = total[block.left : block.right]
                term = buffer[: len(acc)]
                for file in files:
                    os.preadv(file, [term.data.cast("B")], start + 4 * block.left)
                    np.add(acc, term, out=acc)

        in_threads(add_up, blocks_of(1, count, chunk))
    return total


def _aggregate(paths: list[Path]) -> State:
    with stored_updates(paths) as (current, updates):
        return aggregated(with_mean, current, updates)


@contextmanager
def stored_updates(paths: list[Path]) -> Iterator[tuple[StoredTensors, list[Update]]]:
    """The first of these blobs as the current model, and each as a client's update, open as in the round engine."""
    locations = {i.to_bytes(32, "big"): Location(path.stat().st_size, path=path) for i, path in enumerate(paths)}
    stored = [StoredTensors(digest, found.size, locations.__getitem__) for digest, found in locations.items()]
    updates = [
        Update(
            client=tensors.digest,
            num_examples=100 + 10 * i,
            values={WEIGHTS: tensors},
            sent={GLOBAL: stored[0]},
            class_counts=(10 + i,) * 10,
        )
        for i, tensors in enumerate(stored)
    ]
    with ExitStack() as open_blobs:
        for tensors in stored:
            open_blobs.enter_context(tensors.opened())
        yield stored[0], updates


def aggregated(aggregate: Aggregate, current: StoredTensors, updates: list[Update]) -> State:
    """The state after a round."""
    phase = Phase(name="train", rounds=1, cohort=None, plan=assignment_pb2.LocalPlan())
    tools = Tools(generator=np.random.default_rng(0), population=(), initial=current)
    return aggregate(phase, State(shared={GLOBAL: current}), updates, tools)
