"""Partitions: what an emulated camera holds in each round, a pure function of (seed, client index, round).

`camera-iid`, `camera-noniid`             a fresh local set in every round (`camera.py`)
`album`                                   photos arrive, fill a limit, go; labels get corrected (`filling.py`)
`dirichlet`, `classes`, `two-classes`,    one local set for all rounds, by a partition of the pool
`pooled-halves`, `feature-skew`           (`splits.py`, `division.py`; `noise.py`)
`clients`                                 the photos of one or several owners, for all rounds (`dealing.py`)
"""

from fedlens_edge_client.emulation.partitions.division import EvaluatorAlbum
from fedlens_edge_client.emulation.partitions.listing import PoolPhoto, PoolUnusable
from fedlens_edge_client.emulation.partitions.partition import SETTINGS, BadPartition, Partition, PartitionName
from fedlens_edge_client.emulation.partitions.pool import PhotoPool, TooFewPhotos
from fedlens_edge_client.emulation.partitions.splits import Unservable

__all__ = [
    "SETTINGS",
    "BadPartition",
    "EvaluatorAlbum",
    "Partition",
    "PartitionName",
    "PhotoPool",
    "PoolPhoto",
    "PoolUnusable",
    "TooFewPhotos",
    "Unservable",
]
