"""Arithmetic with one thread, where several would give other sums each time, or wait for each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types

_using = Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Have BLAS and OpenMP use one thread in the whole process; who wants this meanwhile waits until it has ended.

    `threadpoolctl` leaves the limit to one thread at a time and ignores what another one asks for.
    """
    with _using, threadpool_limits(1):
        yield


def sum_of_squares(vector: NDArray[np.float64]) -> float:
    """The sum of squares of a vector's elements.

    BLAS would divide a long vector among threads, which wait for each other longer than the sum takes.
    """
    return float(np.square(vector).sum())
