"""Small backbones and bundles, and the comparison of a lowered program with its source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedlens_export.exporting import Training, frozen_backbone_bundle, whole_model_bundle
from fedlens_export.models import backbones
from fedlens_export.programs import lowering, parity
from fedlens_export.programs.steps import ProgramSource
from fedlens_proto.manifest import Bundle

CLASSES = ("cat", "dog", "emu")
SIDE = 16


def flatten() -> nn.Module:
    """A backbone without any weights: photos of any side become 2 x 2 x 3 = 12 features."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())


def frozen_bundle(
    folder: Path, backbone: nn.Module | None = None, *, features: int = 12, head: str = "linear", **training: Any
) -> Bundle:
    """A bundle of a head by name on a backbone, by default on `flatten`, for photos of 16 x 16 pixels."""
    made = backbones.build_head(head, features, len(CLASSES), seed=0)
    settings = Training(class_names=CLASSES, batch=4, **training)
    return frozen_backbone_bundle(folder, backbone or flatten(), made, settings, SIDE)


def whole_bundle(folder: Path, *layers: nn.Module, side: int = 4, **training: Any) -> Bundle:
    """A bundle of layers that all train, the first of which takes flat photos."""
    settings = Training(**{"class_names": CLASSES, "batch": 4, **training})
    return whole_model_bundle(folder, nn.Sequential(nn.Flatten(), *layers), settings, side)


def difference(source: ProgramSource, known: Mapping[str, Tensor]) -> float:
    """The largest difference between a program's `.pt2`, which is vetted, and its source."""
    raw = lowering.lower(source.name, source.function, parity.examples(source, known, {}, seed=0))
    return parity.compare(source, lowering.load(raw), known, {})
