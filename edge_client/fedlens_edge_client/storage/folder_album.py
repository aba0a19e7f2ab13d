"""An album in a folder with one sub-folder per class, read anew in every round."""

import os
import time
from collections import defaultdict
from hashlib import file_digest
from pathlib import Path
from typing import NamedTuple

from fedlens_edge_client.errors import AlbumError
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_proto import keyed_hash, photos

UNREADABLE = "files that cannot be read"
OUTSIDE = "files outside the class folders"
# A file that changes twice within the resolution of the file system's clock may keep its size and time.
_SETTLED_NS = 2_000_000_000


class _FileDigest(NamedTuple):
    size: int
    mtime_ns: int
    sha256: bytes


class FolderAlbum:
    """Photos in `root/<class>/`; the digest of a photo decides whether it is a test photo."""

    def __init__(self, root: Path) -> None:
        """Check that the folder exists; photos are read later.

        Args:
            root: Folder with one sub-folder for each class; its photos may change at any time.

        Raises:
            AlbumError: There is no such folder.
        """
        if not root.is_dir():
            raise AlbumError(f"{root} is no folder; give one that has a sub-folder of photos for each class")
        self._root = root
        self._known: dict[Path, _FileDigest] = {}
        self._state: StateFolder | None = None

    def remember_in(self, state: StateFolder) -> None:
        """Store digests in the database of `state`, so that unchanged files are read only once."""
        self._state = state
        rows = state.select("SELECT path, size, mtime_ns, sha256 FROM photo_digests")
        self._known = {Path(os.fsdecode(path)): _FileDigest(*rest) for path, *rest in rows}

    def photos(self, round_number: int) -> AlbumSnapshot:
        """The present content of the folder, sorted by digest; the same for every round number.

        Raises:
            AlbumError: The folder cannot be read.
        """
        labelled: list[tuple[str, Path, bytes]] = []
        skipped: defaultdict[str, list[str]] = defaultdict(list)
        seen: dict[Path, _FileDigest] = {}
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

    def _read(self, path: Path) -> _FileDigest:
        found = path.stat()
        known = self._known.get(path)
        if known is not None and (known.size, known.mtime_ns) == (found.st_size, found.st_mtime_ns):
            return known
        with path.open("rb") as file:
            return _FileDigest(found.st_size, found.st_mtime_ns, file_digest(file, "sha256").digest())

    def _remember(self, seen: dict[Path, _FileDigest]) -> None:
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
        """A printable name for people, relative to the root."""
        return os.fsencode(path.relative_to(self._root)).decode(errors="replace")


def _numbered(labelled: list[tuple[str, Path, bytes]]) -> tuple[Photo, ...]:
    """Number photos with equal content, in the order of class and file name."""
    copies: defaultdict[bytes, int] = defaultdict(int)
    entries = []
    for label, path, digest in sorted(labelled, key=lambda entry: (entry[0], entry[1].name)):
        entries.append(Photo(digest, copies[digest], label, path, keyed_hash.is_test_photo(digest)))
        copies[digest] += 1
    return tuple(sorted(entries, key=lambda photo: (photo.digest, photo.copy)))
