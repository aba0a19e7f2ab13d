"""Memory of processes that train all the time.

A training step allocates new tensors for all weights. glibc returns large blocks to the system as soon as they are
freed, so every step pays for fresh pages: two to three times the cost of the arithmetic with 50 million weights.
"""

import ctypes
import gc
import sys

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST = (1 << 31) - 1  # the argument is a C int
_TOP_PAD = 64 << 20


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the rest of the process, which other systems lack, and collect garbage rarely.

    The process then holds its peak memory. Call this before starting threads: they share one arena afterwards, because
    arenas of threads cannot hold large blocks.

    Returns:
        Whether glibc keeps it.
    """
    # There is little garbage in cycles; to look for it every 700 new objects took 8 % of a study with a small head.
    gc.set_threshold(10_000, 10, 10)
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    settings = (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, _LARGEST),
        (_M_TRIM_THRESHOLD, _LARGEST),
        (_M_TOP_PAD, _TOP_PAD),
    )
    return all(mallopt(option, value) == 1 for option, value in settings)
