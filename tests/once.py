"""Bundles that are slow to make, made once for all workers of a run of tests."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedlens_proto.manifest import Bundle


def once(folders: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Bundle:
    """The bundle of this name, written by `make` for the first worker that asks; tests leave it as it is."""
    own = folders.getbasetemp()
    # pytest-xdist gives each worker a folder in that of the run.
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "once" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make(folder / "bundle")
            (folder / "made").touch()
    return Bundle.open(folder / "bundle")
