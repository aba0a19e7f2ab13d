"""The photos of a client: what an album promises, and the album that is a folder.

An album changes between rounds, so each round looks at it anew and then works on that snapshot.
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
        label: Name of the class; one that the bundle does not know is left out and told.
        path: Where the bytes are; they are checked against `digest` when they are read.
        is_test: Evaluated on, never trained on.
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
        skipped: File names that are no usable photos, by reason.
    """

    photos: tuple[Photo, ...]
    skipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


class Album(Protocol):
    """Where a client's photos come from."""

    def photos(self, round_number: int) -> AlbumSnapshot:
        """The photos for this round; called in a thread, once when its assignment has arrived.

        Args:
            round_number: From 1; 0 where the round is not known yet and only the number of photos matters.
        """
        ...
