"""Public photos, which a bundle brings along for all clients."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlens_export.errors import NotExportable
from fedlens_proto import photos
from fedlens_proto.errors import PhotoUnreadable


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
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    listed = _listed(folder, class_names)
    for path, label in listed:
        try:
            images.append(photos.load(path, side, side))
        except PhotoUnreadable:
            continue
        labels.append(label)
    if not images:
        raise NotExportable(f"no public photos in {folder.name}: none of {len(listed)} files can be read")
    inputs = torch.from_numpy(photos.as_input(np.stack(images)))
    return PublicPhotos(inputs, np.array(labels, np.int64), len(listed) - len(images))


def _listed(folder: Path, class_names: tuple[str, ...]) -> list[tuple[Path, int]]:
    try:
        folders = [folder, *photos.class_folders(folder)]
        labels = {name: label for label, name in enumerate(class_names)}
        return [(path, labels.get(each.name, 0)) for each in folders for path in photos.list_photos(each).photos]
    except OSError as error:
        raise NotExportable(f"no public photos: {error}") from error
