"""ExecuTorch's runtime in this process, on one thread; most of FedLens runs without it.

Only its compiled module is imported, because the package around it imports a compiler, which takes seconds. The module
is not part of ExecuTorch's stable interface, so ExecuTorch's version is pinned.
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
    """The compiled module; programs loaded from now on run on one thread.

    Raises:
        ImportError: ExecuTorch is not installed, or not for this machine.
    """
    _give_streams()
    with _silence():
        found: Any = import_module("executorch.extension.pybindings._portable_lib")
        # Programs loaded earlier keep their own pool of threads.
        if found._threadpool_get_thread_count() != 1:
            found._unsafe_reset_threadpool(1)
    return found


def _give_streams() -> None:
    """Set Python's streams, which the library writes to, if they are None because the process began without them."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))


@contextmanager
def _silence() -> Iterator[None]:
    """Keep messages of the runtime's libraries about the processor from the terminal."""
    if sys.__stderr__ is None:
        # The process began without it, so another file may have its number by now.
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
