"""The folder of a demo: the report stays, everything else is made anew by each run."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RUN_FOLDER = "run"
MARK = ".made-by-fedlens-demo"


class WorkplaceTaken(Exception):
    """The folder cannot be used; the text says why and what to do."""


@contextmanager
def workplace(out: Path) -> Iterator[Path]:
    """An empty folder for the parts of one run, kept after it so that its logs can be read.

    Raises:
        WorkplaceTaken: Another demo runs there, or the folder to be emptied was not made by a demo.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkplaceTaken(f"{out} cannot be made a folder: {error.strerror}; choose another with --out") from error
    run = out / RUN_FOLDER
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorkplaceTaken(
                f"another demo runs in {out}; wait for it, or choose another folder with --out"
            ) from error
        if run.exists():
            if not (run / MARK).is_file():
                raise WorkplaceTaken(f"{run} is not of a demo and would be emptied; choose another folder with --out")
            shutil.rmtree(run)
        run.mkdir()
        (run / MARK).touch()
        yield run
