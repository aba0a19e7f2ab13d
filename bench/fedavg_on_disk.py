"""FedAvg of 50 models of 11.2 M float32 on disk, page cache warm, against the least that any mean must do.

Floor: the memory-mapped data of the same files summed up in float32. FedLens: the method's aggregation as the round
engine calls it, tensor by tensor from stored blobs, weighted, accumulated in float64.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from bench import models
from bench.row import Row, against_floor, in_turns
from fedlens_proto.blob import Array, Blob
from fedlens_proto.v1 import assignment_pb2
from fedlens_server.methods.fedavg import with_mean
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import GLOBAL, Aggregate, Phase, State, Tools, Update
from fedlens_server.store import Location
from fedlens_server.store.tensors import StoredTensors

CLIENTS = 50
REPEATS = 5


def measure(folder: Path) -> list[Row]:
    """One row."""
    paths = models.write_blobs(models.resnet18(), folder / "blobs", CLIENTS)

    def floor() -> Array:
        start = Blob.open(paths[0]).layout.offsets[0]
        total = np.zeros((paths[0].stat().st_size - start) // 4, np.float32)
        for path in paths:
            total += np.memmap(path, np.float32, "r", start)
        return total

    summed, averaged = in_turns(REPEATS, floor, lambda: _aggregate(paths))
    name = "FedAvg of 50 x 11.2 M float32 blobs on disk, float64 accumulation"
    return [against_floor(name, summed, averaged, 1.5, "memory-mapped float32 sum", unit="s")]


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
