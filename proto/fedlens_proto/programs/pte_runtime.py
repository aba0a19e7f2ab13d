"""ExecuTorch's runtime in this process, on one thread; most of FedLens runs without it.

Its compiled module is imported directly: the package around it imports a compiler, which takes seconds. That module is
not part of ExecuTorch's stable interface, so its version is pinned.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled module; programs that are loaded from now on run on one thread.

    Raises:
        ImportError: ExecuTorch is not installed, or not for this machine.
    """
    _give_streams()
    with _silence():
        found: Any = import_module("executorch.extension.pybindings._portable_lib")
        # Programs that are loaded already keep the pool that they were loaded with.
        if found._threadpool_get_thread_count() != 1:
            found._unsafe_reset_threadpool(1)
    return found


def _give_streams() -> None:
    """Every call of the library writes to Python's streams, which are None where the process began without them."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))


@contextmanager
def _silence() -> Iterator[None]:
    """What the runtime's libraries write about the processor does not reach the terminal."""
    if sys.__stderr__ is None:
        # The process began without it: its number may be that of any other file by now.
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
