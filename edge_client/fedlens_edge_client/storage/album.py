"""The interface of albums, a client's source of photos.

An album changes between rounds, so each round takes a new snapshot and works on that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Photo:
    """One labelled photo.

    Attributes:
        digest: SHA-256 of the file's bytes.
        copy: 0 for the first entry with this digest in the album, then 1, 2, ...
        label: Name of the class; photos of classes that the bundle lacks are skipped and reported.
        path: The file; its bytes are checked against `digest` when they are read.
        is_test: Reserved for evaluation, never trained on.
    """

    digest: bytes
    copy: int
    label: str
    path: Path
    is_test: bool


@dataclass(frozen=True, slots=True)
class AlbumSnapshot:
    """The album as it was at one moment.

    Attributes:
        photos: In any order; each (digest, copy) once.
        skipped: Names of unusable files, by reason.
    """

    photos: tuple[Photo, ...]
    skipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


class Album(Protocol):
    """A source of photos."""

    def photos(self, round_number: int) -> AlbumSnapshot:
        """The photos for this round; called in a thread, once the assignment has arrived.

        Args:
            round_number: From 1; 0 before an assignment, when only the number of photos matters.
        """
        ...
