"""Numerical libraries with one thread, where several would give other sums each time, or wait for each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types

_using = Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Have BLAS and OpenMP use one thread in the whole process; who wants this meanwhile waits until it has ended.

    `threadpoolctl` leaves the limit to one thread at a time and ignores what another one asks for.
    """
    with _using, threadpool_limits(1):
        yield
