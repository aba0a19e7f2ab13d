"""Output folders that one process at a time uses."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlens.errors import FolderInUse


@contextmanager
def locked(folder: Path, user: str) -> Iterator[None]:
    """Make the folder of a `user`, such as a study, and keep others out of it.

    Raises:
        FolderInUse: It cannot be made, or another process uses it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise FolderInUse(f"--out: {folder} cannot be used: {error.strerror}; choose another folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderInUse(
                f"--out: another {user} runs in {folder}; wait for it, or choose another folder"
            ) from error
        yield
