"""Public photos, which a bundle brings along for all clients."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlens_export.errors import NotExportable
from fedlens_proto import photos


@dataclass(frozen=True)
class PublicPhotos:
    """Photos of a folder, sorted by class and name.

    Attributes:
        photos: float32 [P, 3, side, side] in 0..1.
        labels: int64 [P]; 0 for photos whose sub-folder is named like no class.
        unreadable: Number of files left out.
    """

    photos: Tensor
    labels: NDArray[np.int64]
    unreadable: int


def check(folder: Path) -> None:
    """Check that a folder has photos, without opening them. Errors as in `load`."""
    if not _listed(folder, ()):
        raise NotExportable(f"no public photos in {folder.name}; give JPEG, PNG, WebP or BMP files")


def load(folder: Path, side: int, class_names: tuple[str, ...]) -> PublicPhotos:
    """All photos directly in a folder, and in its sub-folders, scaled to `side` pixels.

    Raises:
        NotExportable: There is no such folder, or no readable photo in it.
    """
    listed = _listed(folder, class_names)
    read = list(photos.readable((path for path, _ in listed), side))
    if not read:
        raise NotExportable(f"no public photos in {folder.name}: none of {len(listed)} files can be read")
    inputs = torch.from_numpy(photos.as_input(np.stack([image for _, image in read])))
    labels = np.array([listed[place][1] for place, _ in read], np.int64)
    return PublicPhotos(inputs, labels, len(listed) - len(read))


def _listed(folder: Path, class_names: tuple[str, ...]) -> list[tuple[Path, int]]:
    try:
        by_name = {name: label for label, name in enumerate(class_names)}
        labels = {folder: 0, **{each: by_name.get(each.name, 0) for each in photos.class_folders(folder)}}
        return [(path, label) for each, label in labels.items() for path in photos.list_photos(each).photos]
    except OSError as error:
        raise NotExportable(f"no public photos: {error}") from error
