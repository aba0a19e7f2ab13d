"""The state of a run that goes on elsewhere: what has changed in its folder, as bytes, and those bytes kept.

The folder that keeps them is that of the other side when it last told; a kill while it is written leaves `LOG_FILE`,
from which `redo` finishes.
"""

import io
import json
import time
from pathlib import Path
from zipfile import ZipFile

from fedlens.whole_file import replacing

LOG_FILE, _GONE = ".changes.zip", ".gone"
# Of a file written so short a time before, a later change may leave the time of its last change as it was.
_RECENT_NS = 100_000_000


class Changes:
    """The changes in a folder."""

    def __init__(self, folder: Path) -> None:
        """Nothing is known of the folder, which nobody may write during `take`."""
        self._folder = folder
        self._known: dict[str, tuple[int, int, int]] = {}
        self._told: set[str] = set()

    def take(self) -> bytes:
        """A zip file of all that has changed since the last call; at first, of all."""
        recent = time.time_ns() - _RECENT_NS
        found, known = set(), {}
        written = io.BytesIO()
        with ZipFile(written, "w") as archive:
            for path in sorted(self._folder.rglob("*")):
                name = path.relative_to(self._folder).as_posix()
                if name == LOG_FILE:
                    continue
                found.add(name)
                about = path.stat()
                seen = (0, 0, 0) if path.is_dir() else (about.st_mtime_ns, about.st_size, about.st_ino)
                if self._known.get(name) != seen:
                    archive.write(path, name)
                if seen[0] < recent:
                    known[name] = seen
            archive.writestr(_GONE, json.dumps(sorted(self._told - found)))
        self._known, self._told = known, found
        return written.getvalue()


def keep(folder: Path, changes: bytes) -> None:
    """Make the folder what that of `changes` was, completely or, after a kill and `redo`, completely."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / LOG_FILE) as partial:
        partial.write_bytes(changes)
    redo(folder)


def redo(folder: Path) -> None:
    """Finish a `keep` that was killed."""
    log = folder / LOG_FILE
    if not log.is_file():
        return
    with ZipFile(log) as archive:
        gone = json.loads(archive.read(_GONE))
        for path in (folder / name for name in reversed(gone)):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        archive.extractall(folder, [name for name in archive.namelist() if name != _GONE])
    log.unlink()
