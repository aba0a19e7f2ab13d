"""Fleets and photos of measures."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.partitions import Partition, PhotoPool


def fleet(photos: PhotoPool, partition: Partition, clients: int, state: Path, **others: Any) -> FleetConfig:
    """A fleet without faults and without an evaluator; `others` are its server, token and processes."""
    return FleetConfig(
        pool=photos, partition=partition, clients=clients, state=state, plan=FaultPlan(), key=bytes(32), **others
    )


def draw_noise(folder: Path, count: int, side: int, generator: np.random.Generator) -> None:
    """Write square photos of noise as PNG into a new folder."""
    folder.mkdir(parents=True)
    for i in range(count):
        Image.fromarray(generator.integers(0, 256, (side, side, 3), np.uint8)).save(folder / f"{i:03}.png")
