"""Drift: the classes that arrive in an album are others in every season of its owner's life.

Every `SEASON` rounds each class gets a weight, drawn from an exponential distribution and divided by the largest, so
that the classes' shares are a uniformly drawn mix; in between the weights move in a straight line. A pure function of
(seed, client, round).
"""

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.emulation.partitions.camera import generator

SEASON = 10


def class_weights(seed: int, index: int, round_number: int, classes: int) -> NDArray[np.float64]:
    """How much of each class arrives in this round, float64 [classes], 0 to 1 of the most that may."""
    season, passed = divmod(round_number, SEASON)
    now, then = (_weights(seed, index, number, classes) for number in (season, season + 1))
    return now + (then - now) * (passed / SEASON)


def _weights(seed: int, index: int, season: int, classes: int) -> NDArray[np.float64]:
    drawn = generator("fedlens/regime/drift/v1", seed, index, season).exponential(size=classes)
    return np.asarray(drawn / drawn.max())
