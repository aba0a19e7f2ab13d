"""Training a backbone on public photos, before it is frozen."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedlens_export.errors import NotExportable
from fedlens_export.network import Normalisation
from fedlens_proto import photos

BATCH = 32
LEARNING_RATE = 1e-3
STATISTICS_MOMENTUM = 0.1


def train(
    backbone: nn.Module,
    folder: Path,
    side: int,
    normalisation: Normalisation,
    *,
    epochs: int,
    seed: int,
    on_stage: Callable[[str], None],
) -> None:
    """Train `backbone` in place with a temporary FC classifier, by Adam, and put it into evaluation mode.

    Args:
        backbone: From normalised photos [N, 3, side, side] to features.
        folder: Photos, one sub-folder a class. Take public photos only: weights remember photos.
        side: Side of the photos, in pixels.
        normalisation: Normalisation of photos before the backbone.
        epochs: Passes over all photos, at least 1.
        seed: Seed of the classifier's weights, the order of photos and their mirroring.
        on_stage: Receives one line for each epoch, and one about unreadable photos.

    Raises:
        NotExportable: There are less than two classes, or too few readable photos.
    """
    if epochs < 1:
        raise NotExportable(f"{epochs} epochs of pretraining are not allowed; at least 1 is needed")
    images, labels, classes = _load(folder, side, on_stage)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        features = backbone(torch.zeros(1, 3, side, side)).shape[1]
        head = nn.Linear(features, classes)
        optimiser = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=LEARNING_RATE)
        backbone.train()
        for module in backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                # Some networks average over thousands of batches; here there are perhaps a hundred.
                module.momentum = STATISTICS_MOMENTUM
        for epoch in range(epochs):
            loss = _epoch(backbone, head, optimiser, images, labels, normalisation)
            on_stage(f"pretraining: epoch {epoch + 1} of {epochs}, loss {loss:.3f}")
    backbone.eval()


def _epoch(
    backbone: nn.Module,
    head: nn.Module,
    optimiser: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    normalisation: Normalisation,
) -> float:
    losses = []
    order = torch.randperm(len(images))
    # A short last batch would give BatchNorm statistics of a few photos; in another epoch they are in other batches.
    for start in range(0, len(order) - min(BATCH, len(order)) + 1, BATCH):
        rows = order[start : start + BATCH]
        batch = normalisation(images[rows].float() / 255)
        mirrored = torch.rand(len(rows)) < 0.5
        batch = torch.where(mirrored.reshape(-1, 1, 1, 1), batch.flip(3), batch)
        loss = functional.cross_entropy(head(backbone(batch)), labels[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimiser.step()
        losses.append(loss.item())
    return float(np.mean(losses))


def _load(folder: Path, side: int, on_stage: Callable[[str], None]) -> tuple[Tensor, Tensor, int]:
    try:
        folders = photos.class_folders(folder)
    except OSError as error:
        raise NotExportable(f"no photos to train on: {error}") from error
    images, labels, unreadable = list[NDArray[np.uint8]](), list[int](), 0
    for label, class_folder in enumerate(folders):
        listed = photos.list_photos(class_folder).photos
        read = [image for _, image in photos.readable(listed, side)]
        images += read
        labels += [label] * len(read)
        unreadable += len(listed) - len(read)
    if len(set(labels)) < 2 or len(images) < 2 * len(folders):
        raise NotExportable(
            f"{len(images)} readable photos in {len(folders)} class folders of {folder.name}; pretraining needs at "
            "least two classes and two photos for each class folder"
        )
    if unreadable:
        on_stage(f"note: left out of pretraining, because unreadable: {unreadable}")
    return torch.from_numpy(np.stack(images)), torch.tensor(labels), len(folders)
