"""Drift: the class mix of the photos that arrive in an album changes from season to season.

Every `SEASON` rounds each class gets a weight, drawn from an exponential distribution and divided by the largest, which
makes the mix of classes uniformly distributed; in between the weights change linearly. A pure function of (seed,
client, round).
"""

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.emulation.partitions.camera import generator

SEASON = 10


def class_weights(seed: int, index: int, round_number: int, classes: int) -> NDArray[np.float64]:
    """The arrivals of each class in this round, as a fraction of the largest class's maximum: float64 [classes]."""
    season, passed = divmod(round_number, SEASON)
    now, then = (_weights(seed, index, number, classes) for number in (season, season + 1))
    return now + (then - now) * (passed / SEASON)


def _weights(seed: int, index: int, season: int, classes: int) -> NDArray[np.float64]:
    drawn = generator("drift/v1", seed, index, season).exponential(size=classes)
    return np.asarray(drawn / drawn.max())
