"""Keeping freed memory in the process, for workers that train all the time.

A training step makes new tensors for all weights. glibc gives large blocks back to the system as soon as they are
freed, so that every step pays for fresh pages: two or three times the arithmetic for models of 50 million weights.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST = (1 << 31) - 1  # the argument is a C int
_TOP_PAD = 64 << 20


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed, for the rest of the process; elsewhere do nothing.

    The process then holds the most memory that it ever needed at once. Call it before there are
    other threads: they then share one arena, because those of threads cannot hold large blocks.

    Returns:
        Whether it took effect.
    """
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
