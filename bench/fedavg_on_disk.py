"""FedAvg of 50 models of 11.2 M float32 on disk, page cache warm, against the least that any mean must do.

Floor: the memory-mapped data of the same files summed up in float32. FedLens: the method's own average, tensor by
tensor through mapped blobs, weighted, accumulated in float64.
"""

from pathlib import Path

import numpy as np

from bench import models
from bench.row import Row, against_floor, in_turns
from fedlens_proto.blob import Array, Blob
from fedlens_server.methods import fedavg

CLIENTS = 50
REPEATS = 5


def measure(folder: Path) -> list[Row]:
    """One row."""
    paths = models.write_blobs(models.resnet18(), folder / "blobs", CLIENTS)
    counts = [100 + i for i in range(CLIENTS)]

    def floor() -> Array:
        start = Blob.open(paths[0]).layout.offsets[0]
        total = np.zeros((paths[0].stat().st_size - start) // 4, np.float32)
        for path in paths:
            total += np.memmap(path, np.float32, "r", start)
        return total

    def average() -> dict[str, Array]:
        blobs = [Blob.open(path) for path in paths]
        return {name: fedavg.average([blob[name] for blob in blobs], counts) for name in blobs[0]}

    summed, averaged = in_turns(REPEATS, floor, average)
    name = "FedAvg of 50 x 11.2 M float32 blobs on disk, float64 accumulation"
    return [against_floor(name, summed, averaged, 2.0, "memory-mapped float32 sum", unit="s")]
