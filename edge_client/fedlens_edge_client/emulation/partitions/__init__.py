"""Partitions: the photos of each emulated client in each round, a pure function of (seed, client index, round).

May import the client's albums and errors, and nothing else of `emulation`. Begin with `partition.py`; partitions are in
`camera.py`, `filling.py` (`album`), `division.py` (all that divide a pool) and `noise.py` (`feature-skew`).
"""

from fedlens_edge_client.emulation.partitions.listing import PoolPhoto, PoolUnusable
from fedlens_edge_client.emulation.partitions.names import DRAWING, SETTINGS, PartitionName
from fedlens_edge_client.emulation.partitions.partition import BadPartition, Partition
from fedlens_edge_client.emulation.partitions.pool import PhotoPool, TooFewPhotos
from fedlens_edge_client.emulation.partitions.splits import Unservable

__all__ = [
    "DRAWING",
    "SETTINGS",
    "BadPartition",
    "Partition",
    "PartitionName",
    "PhotoPool",
    "PoolPhoto",
    "PoolUnusable",
    "TooFewPhotos",
    "Unservable",
]
