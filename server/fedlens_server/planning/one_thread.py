"""Arithmetic with one thread: with several, sums depend on the number of processors or are others each time.

Where processors are busy, several threads also wait for each other for much longer than a sum takes.
"""

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types


def use_one_thread() -> None:
    """Have BLAS in this process, and OpenMP in this thread, use one thread from now on.

    Libraries that are loaded later are not among them.
    """
    threadpool_limits(1)
