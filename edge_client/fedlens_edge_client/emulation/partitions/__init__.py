"""Regimes: what an emulated camera holds in each round, a pure function of (seed, client index, round).

`camera-iid`, `camera-noniid`             a fresh local set in every round (`camera.py`)
`album`                                   photos arrive, fill a limit, go; labels get corrected (`filling.py`)
`dirichlet`, `classes`, `two-classes`,    one local set for all rounds, by a partition of the pool
`pooled-halves`, `feature-skew`           (`partition.py`, `division.py`; `noise.py`)
`clients`                                 the photos of one or several owners, for all rounds (`dealing.py`)
"""

from fedlens_edge_client.emulation.partitions.division import EvaluatorAlbum
from fedlens_edge_client.emulation.partitions.listing import PoolPhoto, PoolUnusable
from fedlens_edge_client.emulation.partitions.partition import Unservable
from fedlens_edge_client.emulation.partitions.pool import PhotoPool, TooFewPhotos
from fedlens_edge_client.emulation.partitions.regime import SETTINGS, BadRegime, Regime, RegimeName

__all__ = [
    "SETTINGS",
    "BadRegime",
    "EvaluatorAlbum",
    "PhotoPool",
    "PoolPhoto",
    "PoolUnusable",
    "Regime",
    "RegimeName",
    "TooFewPhotos",
    "Unservable",
]
