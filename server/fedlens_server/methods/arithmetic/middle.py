"""The middle of what clients sent, where a method takes it itself because not every client sends each row of a table.

Paper: Yin, Chen, Ramchandran, Bartlett, ICML 2018, https://arxiv.org/abs/1803.01498, Definitions 1 and 2.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def middle(values: ArrayLike, cut: int) -> NDArray[np.float64]:
    """By coordinate the mean of n values without the `cut` least and the `cut` greatest; [n, ...] to [...].

    `cut` is at most (n - 1) // 2, which gives the median.
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=0)
    found: NDArray[np.float64] = ordered[cut : len(ordered) - cut].mean(axis=0)
    return found
