"""The folder of a demo's run, emptied by the next one; the report, the model and features stay beside it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlens.errors import FolderInUse
from fedlens.locked_folder import locked

RUN_FOLDER = "run"
MARK = ".made-by-fedlens-demo"


@contextmanager
def run_folder(out: Path) -> Iterator[Path]:
    """An empty folder for one run's files; it stays after the run for the sake of its logs.

    Raises:
        FolderInUse: Another demo uses `out`, or something else made the folder to be emptied.
    """
    with locked(out, "demo"):
        run = out / RUN_FOLDER
        if run.exists():
            if not (run / MARK).is_file():
                raise FolderInUse(f"--out: no demo made {run}, which would be emptied; choose another folder")
            shutil.rmtree(run)
        run.mkdir()
        (run / MARK).touch()
        yield run
