"""Photos as they are found in folders: their digests, numbers for equal files, and what is left out."""

from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.storage.folder_album import UNREADABLE
from fedlens_proto import photos


class PoolUnusable(EdgeClientError):
    """The photos cannot serve a study; the text names the folder, class or client and what it must have."""


@dataclass(frozen=True, slots=True)
class PoolPhoto:
    """One photo: an album entry without label and side.

    Attributes:
        owner: The person or device that the photo comes from; empty where the folder does not say.
        camera: As a table says; empty otherwise.
    """

    path: Path
    digest: bytes
    copy: int
    owner: str = ""
    camera: str = ""


ByClass = dict[str, tuple[PoolPhoto, ...]]
"""Photos by the names of their classes, ordered by path in each."""


class Listing:
    """Reads photos; copies of one file are numbered over the whole pool, so that each entry is unique.

    Attributes:
        skipped: For each reason the files that are no usable photos, relative to the root.
    """

    def __init__(self, root: Path) -> None:
        """Nothing is read yet."""
        self._root = root
        self._copies: Counter[bytes] = Counter()
        self.skipped: dict[str, list[str]] = {}

    def classes(self, folder: Path, owner: str = "") -> ByClass:
        """The photos in the class folders below `folder`."""
        return {child.name: self._photos(child, owner) for child in photos.class_folders(folder)}

    def photo(self, path: Path, owner: str = "", camera: str = "") -> tuple[PoolPhoto, ...]:
        """The photo in a file; none if it cannot be read, which is noted."""
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
