"""Photos found in folders, with digests and numbers for equal files, and the files that are left out."""

from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.storage.folder_album import UNREADABLE
from fedlens_proto import photos


class PoolUnusable(EdgeClientError):
    """The photos cannot be used; the text names the folder, class or client and what it must have."""


@dataclass(frozen=True, slots=True)
class PoolPhoto:
    """One photo: an album entry without label and side.

    Attributes:
        owner: Person or device; empty if unknown.
        camera: Camera by a table; empty if unknown.
    """

    path: Path
    digest: bytes
    copy: int
    owner: str = ""
    camera: str = ""


ByClass = dict[str, tuple[PoolPhoto, ...]]
"""Photos by class name, ordered by path."""


class Listing:
    """Reads photos, and numbers equal files of the whole pool, so that each entry is unique.

    Attributes:
        skipped: Files that are not usable photos, relative to the root, by reason.
    """

    def __init__(self, root: Path) -> None:
        """Read nothing yet."""
        self._root = root
        self._copies: Counter[bytes] = Counter()
        self.skipped: dict[str, list[str]] = {}

    def classes(self, folder: Path, owner: str = "") -> ByClass:
        """The photos in the class folders below `folder`."""
        return {child.name: self._photos(child, owner) for child in photos.class_folders(folder)}

    def photo(self, path: Path, owner: str = "", camera: str = "") -> tuple[PoolPhoto, ...]:
        """The photo in a file; empty for an unreadable file, which is noted."""
        try:
            digest = sha256(path.read_bytes()).digest()
        except OSError:
            self.skip(UNREADABLE, path)
            return ()
        self._copies[digest] += 1
        return (PoolPhoto(path, digest, self._copies[digest] - 1, owner, camera),)

    def skip(self, reason: str, *files: Path) -> None:
        """Note files that are left out."""
        self.skipped.setdefault(reason, []).extend(str(file.relative_to(self._root)) for file in files)

    def _photos(self, folder: Path, owner: str) -> tuple[PoolPhoto, ...]:
        found = photos.list_photos(folder)
        for reason, files in found.skipped.items():
            self.skip(reason, *files)
        return tuple(photo for path in found.photos for photo in self.photo(path, owner))
