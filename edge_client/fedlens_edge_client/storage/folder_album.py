"""The album that is a folder: one sub-folder a class, looked at anew in every round."""

import os
import time
from collections import defaultdict
from hashlib import file_digest
from pathlib import Path
from typing import NamedTuple

from fedlens_edge_client.errors import AlbumError
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo
from fedlens_edge_client.storage.state import State
from fedlens_proto import keyed_hash, photos

UNREADABLE = "files that cannot be read"
OUTSIDE = "files outside the class folders"
# A file changed again within the resolution of the file system's clock would keep its size and time.
_SETTLED_NS = 2_000_000_000


class _Known(NamedTuple):
    size: int
    mtime_ns: int
    sha256: bytes


class FolderAlbum:
    """Photos in `root/<class>/`; which ones are kept aside for evaluation follows from their content."""

    def __init__(self, root: Path) -> None:
        """Nothing is read yet.

        Args:
            root: Folder with one sub-folder for each class; the photos may change at any time.

        Raises:
            AlbumError: There is no such folder.
        """
        if not root.is_dir():
            raise AlbumError(f"{root} is no folder; give one that has a sub-folder of photos for each class")
        self._root = root
        self._known: dict[Path, _Known] = {}
        self._state: State | None = None

    def remember_in(self, state: State) -> None:
        """Keep digests in the database of `state`, so that unchanged files are read only once in its life."""
        self._state = state
        with state.transaction() as db:
            rows = db.execute("SELECT path, size, mtime_ns, sha256 FROM photo_digests").fetchall()
        self._known = {Path(os.fsdecode(path)): _Known(*rest) for path, *rest in rows}

    def photos(self, round_number: int) -> AlbumSnapshot:
        """What is in the folder now, sorted by digest; the same for every round number.

        Raises:
            AlbumError: The folder is gone.
        """
        labelled: list[tuple[str, Path, bytes]] = []
        skipped: defaultdict[str, list[str]] = defaultdict(list)
        seen: dict[Path, _Known] = {}
        try:
            folders = photos.class_folders(self._root)
            outside = [p for p in self._root.iterdir() if not p.is_dir() and not p.name.startswith(".")]
        except OSError as error:
            raise AlbumError(f"the photo folder cannot be read: {error}") from error
        skipped[OUTSIDE] += [self._name(path) for path in outside]
        for folder in folders:
            try:
                listing = photos.list_photos(folder)
            except OSError:
                skipped[UNREADABLE].append(self._name(folder))
                continue
            for reason, paths in listing.skipped.items():
                skipped[str(reason)] += [self._name(path) for path in paths]
            for path in listing.photos:
                try:
                    seen[path] = self._read(path)
                except OSError:
                    skipped[UNREADABLE].append(self._name(path))
                else:
                    labelled.append((folder.name, path, seen[path].sha256))
        self._remember(seen)
        return AlbumSnapshot(
            _numbered(labelled), {why: tuple(sorted(names)) for why, names in skipped.items() if names}
        )

    def _read(self, path: Path) -> _Known:
        found = path.stat()
        known = self._known.get(path)
        if known is not None and (known.size, known.mtime_ns) == (found.st_size, found.st_mtime_ns):
            return known
        with path.open("rb") as file:
            return _Known(found.st_size, found.st_mtime_ns, file_digest(file, "sha256").digest())

    def _remember(self, seen: dict[Path, _Known]) -> None:
        settled = time.time_ns() - _SETTLED_NS
        keep = {path: known for path, known in seen.items() if known.mtime_ns < settled}
        if self._state is not None and keep != self._known:
            new = [(os.fsencode(path), *known) for path, known in keep.items() if self._known.get(path) != known]
            gone = [(os.fsencode(path),) for path in self._known.keys() - keep.keys()]
            with self._state.transaction() as db:
                db.executemany("DELETE FROM photo_digests WHERE path = ?", gone)
                db.executemany("INSERT OR REPLACE INTO photo_digests VALUES (?, ?, ?, ?)", new)
        self._known = keep

    def _name(self, path: Path) -> str:
        """For people: relative to the root, and printable whatever bytes the name has."""
        return os.fsencode(path.relative_to(self._root)).decode(errors="replace")


def _numbered(labelled: list[tuple[str, Path, bytes]]) -> tuple[Photo, ...]:
    """Photos with equal content told apart by their place in the order of class and file name."""
    copies: defaultdict[bytes, int] = defaultdict(int)
    entries = []
    for label, path, digest in sorted(labelled, key=lambda entry: (entry[0], entry[1].name)):
        entries.append(Photo(digest, copies[digest], label, path, keyed_hash.is_test_photo(digest)))
        copies[digest] += 1
    return tuple(sorted(entries, key=lambda photo: (photo.digest, photo.copy)))
