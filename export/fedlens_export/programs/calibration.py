"""Calibration photos of a quantised backbone, and the cost of quantising, measured on held-out photos."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedlens_export.errors import NotExportable
from fedlens_export.network import Normalisation
from fedlens_proto import photos

MOST_PHOTOS = 600
MOST_OBSERVED = 64
LEAST_HELD_OUT = 50
"""Fewer photos say nothing about accuracy: each is worth two points."""

_FOLDS = 5
_DIVISIONS = 4
_DECAY = 1e-2
_ITERATIONS = 200


@dataclass(frozen=True)
class Photos:
    """Photos of a folder, most of them held out.

    Attributes:
        seen: uint8 [N, 3, side, side], to calibrate with.
        held_out: uint8 [M, 3, side, side]; empty if there is only one photo.
        labels: Labels of the held-out photos, int64 [M]; None if the folder has no class sub-folders.
        unreadable: Number of files left out.
    """

    seen: Tensor
    held_out: Tensor
    labels: Tensor | None
    unreadable: int

    def observed(self, normalisation: Normalisation) -> list[Tensor]:
        """At most `MOST_OBSERVED` of `seen`, evenly spaced, normalised, each float32 [1, 3, side, side]."""
        return [_as_input(self.seen[i : i + 1], normalisation) for i in _evenly(len(self.seen), MOST_OBSERVED)]


@dataclass(frozen=True)
class Cost:
    """The cost of quantising a backbone, on photos that it was not calibrated with.

    Attributes:
        photos: Number of photos.
        cosine: Mean over photos of the cosine between the features of both backbones.
        least_cosine: The least of these cosines.
        accuracy: Top-1 of an FC head on the features of the float backbone, and of the quantised one, each in 0..1;
            None if there are no classes, or less than `LEAST_HELD_OUT` photos.
    """

    photos: int
    cosine: float
    least_cosine: float
    accuracy: tuple[float, float] | None

    def __str__(self) -> str:
        """A line for people."""
        features = (
            f"cosine of its features with the float backbone's {self.cosine:.4f}, at least {self.least_cosine:.4f}"
        )
        if self.accuracy is None:
            return (
                f"{features} ({self.photos} photos); accuracy not measured: that needs class sub-folders and "
                f"{2 * LEAST_HELD_OUT} photos"
            )
        before, after = self.accuracy
        return (
            f"{100 * (before - after):.1f} points of top-1 lost: {100 * after:.1f} % with a head trained on its "
            f"features, {100 * before:.1f} % on the float backbone's, on {self.photos} held-out photos; {features}"
        )


def check(folder: Path) -> None:
    """Check that a folder has photos, without opening them. Errors as in `load`."""
    if not any(_listed(folder)):
        raise NotExportable(f"no photos to calibrate with in {folder.name}; give JPEG, PNG, WebP or BMP files")


def load(folder: Path, side: int) -> Photos:
    """Evenly spaced photos of a folder or of its sub-folders, each a class.

    There are `MOST_PHOTOS` at most, or two of each class if that is more.

    Args:
        folder: Photos directly in it are used only if it has no sub-folders.
        side: Side of the loaded photos, in pixels.

    Raises:
        NotExportable: There is no such folder, or no readable photo in it.
    """
    listed = _listed(folder)
    unreadable = 0
    seen: list[NDArray[np.uint8]] = []
    held_out: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for label, paths in enumerate(listed):
        some = [paths[i] for i in _evenly(len(paths), max(2, MOST_PHOTOS // len(listed)))]
        images = [image for _, image in photos.readable(some, side)]
        unreadable += len(some) - len(images)
        # At most every second photo, so that few photos are divided in halves.
        apart = max(2, -(-len(images) * len(listed) // MOST_OBSERVED))
        seen += images[::apart]
        others = [image for i, image in enumerate(images) if i % apart]
        held_out += others
        labels += [label] * len(others)
    if not seen:
        raise NotExportable(f"no photos to calibrate with in {folder.name}: none of {unreadable} files can be read")
    return Photos(
        seen=torch.from_numpy(np.stack(seen)),
        held_out=torch.from_numpy(np.stack(held_out)) if held_out else torch.empty(0, 3, side, side),
        labels=torch.tensor(labels) if len(listed) > 1 else None,
        unreadable=unreadable,
    )


def cost(
    backbone: nn.Module,
    quantised: nn.Module,
    given: Photos,
    normalisation: Normalisation,
    on_stage: Callable[[str], None],
) -> Cost:
    """Compare two backbones on the held-out photos; if there are classes, also by linear heads on their features.

    A head trained on four fifths of the photos classifies the other fifth, for several divisions into fifths. The heads
    of both backbones are trained alike, until they converge and without randomness.
    """
    compared = given.held_out if len(given.held_out) else given.seen
    on_stage(f"embedding {len(compared)} photos to measure the cost of quantising")
    features = _embed(backbone, compared, normalisation), _embed(quantised, compared, normalisation)
    cosine = functional.cosine_similarity(*features, dim=1)
    accuracy = None
    if given.labels is not None and len(given.held_out) >= LEAST_HELD_OUT:
        on_stage("training heads to measure the cost of quantising")
        accuracy = _accuracy(features[0], given.labels), _accuracy(features[1], given.labels)
    return Cost(len(compared), cosine.mean().item(), cosine.min().item(), accuracy)


def _listed(folder: Path) -> list[tuple[Path, ...]]:
    """The photos of each class, or one tuple of all photos if there are no classes."""
    try:
        folders = photos.class_folders(folder)
        return [photos.list_photos(each).photos for each in folders or [folder]]
    except OSError as error:
        raise NotExportable(f"no photos to calibrate with: {error}") from error


def _embed(backbone: nn.Module, images: Tensor, normalisation: Normalisation) -> Tensor:
    with torch.no_grad():
        # One by one, since a quantised network takes one photo.
        return torch.cat([backbone(_as_input(image, normalisation)) for image in torch.split(images, 1)])


def _accuracy(features: Tensor, labels: Tensor) -> float:
    """Mean accuracy of heads on features that they were not trained on, over several divisions into fifths."""
    place = torch.arange(len(labels))
    right = 0
    for division in range(_DIVISIONS):
        # Five consecutive photos, mostly of one class, are in different fifths.
        fold = (place + division * (place // _FOLDS)) % _FOLDS
        for i in range(_FOLDS):
            found = _classified(features[fold != i], labels[fold != i], features[fold == i])
            right += int((found == labels[fold == i]).sum())
    return right / (_DIVISIONS * len(labels))


def _classified(seen: Tensor, labels: Tensor, held_out: Tensor) -> Tensor:
    """Labels of `held_out` by multinomial logistic regression with a small decay, trained on `seen`."""
    centre, scale = seen.mean(0), seen.std() + 1e-12
    rows, tests = (seen - centre) / scale, (held_out - centre) / scale
    classes = int(labels.max()) + 1
    weight = torch.zeros(classes, seen.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.cross_entropy(functional.linear(rows, weight, bias), labels)
        value = value + _DECAY * (weight * weight).sum()
        value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with torch.no_grad():
        return functional.linear(tests, weight, bias).argmax(1)


def _as_input(images: Tensor, normalisation: Normalisation) -> Tensor:
    return normalisation(torch.from_numpy(photos.as_input(images.numpy())))


def _evenly(count: int, most: int) -> Sequence[int]:
    taken = min(count, most)
    return [i * count // taken for i in range(taken)]
