"""Training a 576-512-10 head in batches of 16 on one core: the bundle's `step` against an ordinary PyTorch loop."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from bench import plain_loop
from bench.row import Row, against_floor
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones

FEATURES, BATCH = 576, 16
ROWS, EPOCHS = 800, 4
DECAY = 1e-4


class Backbone(nn.Module):
    """The smallest that gives so many features; nothing of it is measured."""

    def __init__(self, features: int = FEATURES) -> None:
        """With random weights."""
        super().__init__()
        self.conv = nn.Conv2d(3, features, 1)

    def forward(self, photos: Tensor) -> Tensor:
        """Features, float32 [N, features]."""
        features: Tensor = self.conv(photos).mean((2, 3))
        return features


def measure(folder: Path) -> list[Row]:
    """One row."""
    training = Training(class_names=tuple(f"class {i}" for i in range(plain_loop.CLASSES)), batch=BATCH)
    head = backbones.build_head("hidden", FEATURES, plain_loop.CLASSES, seed=0)
    frozen_backbone_bundle(folder / "bundle", Backbone(), head, training, input_size=16)
    plain, bundled = plain_loop.compare(
        plain_loop.Work(
            bundle=folder / "bundle",
            network=head,
            forward=nn.Module.__call__,
            inputs=np.random.default_rng(0).standard_normal((ROWS, FEATURES), np.float32),
            batch=BATCH,
            epochs=EPOCHS,
            weight_decay=DECAY,
            atol=1e-5,
            scale=1000,
        )
    )
    steps = EPOCHS * ROWS // BATCH
    name = f"head training, 576-512-10, batch {BATCH}, one core, {steps} steps"
    return [against_floor(name, plain, bundled, 1.2, plain_loop.FLOOR)]
