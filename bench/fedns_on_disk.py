"""FedNS of 20 models of 11.2 M float32 on disk, page cache warm, against FedAvg of the same; and its peak memory.

FedNS reads every update twice, once for the variances and once for the sum. Memory is measured in a process of its own,
which does nothing else: what it has more at its peak than before, in copies of the model.

    python -m bench.fedns_on_disk BLOB ...    prints that in bytes
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from bench import models
from bench.fedavg_on_disk import aggregated, stored_updates
from bench.row import Row, Sample, against_floor, in_turns
from bench.server_process import status_mb
from fedlens_server.methods import fedns
from fedlens_server.methods.fedavg import with_mean
from fedlens_server.planning.method import Aggregate

CLIENTS = 20
REPEATS = 5
MOST_COPIES = 6


def measure(folder: Path) -> list[Row]:
    """Time and memory."""
    paths = models.write_blobs(models.resnet18(), folder / "blobs", CLIENTS)
    averaged, by_node = in_turns(REPEATS, lambda: _aggregate(with_mean, paths), lambda: _aggregate(_fedns(), paths))
    size = paths[0].stat().st_size
    copies = [_peak_bytes(method, paths) / size for method in ("fedavg", "fedns")]
    name = "FedNS of 20 x 11.2 M float32 blobs on disk"
    return [
        against_floor(name, averaged, by_node, 3.0, "FedAvg of the same", unit="s"),
        Row(
            measure=f"{name}: peak memory",
            unit="model copies",
            digits=2,
            floor=Sample((copies[0],)),
            floor_is="FedAvg of the same",
            measured=Sample((copies[1],)),
            judged=copies[1],
            judged_text=f"{copies[1]:.2f} copies",
            target=MOST_COPIES,
            target_text=f"<= {MOST_COPIES} copies",
        ),
    ]


def _fedns() -> Aggregate:
    weights = [name for name in models.resnet18() if name.endswith(".weight") and name != "fc.weight"]
    return partial(fedns.aggregate, frozenset({"fc.weight", "fc.bias"}), [(name, None) for name in weights])


def _aggregate(aggregate: Aggregate, paths: list[Path]) -> object:
    with stored_updates(paths) as (current, updates):
        return aggregated(aggregate, current, updates)


def _peak_bytes(method: str, paths: list[Path]) -> float:
    command = [sys.executable, "-m", "bench.fedns_on_disk", method, *map(str, paths)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _main(method: str, *paths: str) -> None:
    before = status_mb(os.getpid(), "VmRSS")
    kept = _aggregate(_fedns() if method == "fedns" else with_mean, [Path(path) for path in paths])
    print((status_mb(os.getpid(), "VmHWM") - before) * 1e6)
    del kept


if __name__ == "__main__":
    _main(*sys.argv[1:])
