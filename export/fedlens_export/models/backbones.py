"""Frozen backbones by name, their trained weights, and the heads that train on their features."""

from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn

from fedlens_export.errors import NotExportable, check_choice
from fedlens_export.models import efficientnet_lite0, state_dict, torchvision_models
from fedlens_export.models.classified import FEATURES, Classified
from fedlens_export.network import Normalisation

_SOURCES = {**torchvision_models.BACKBONES, **efficientnet_lite0.BACKBONES}
BACKBONES = tuple(_SOURCES)
HEADS = ("linear", "hidden")


def build(name: str, side: int, seed: int) -> nn.Module:
    """A backbone in evaluation mode, with weights drawn from `seed`.

    Raises:
        UnknownChoice: There is no backbone of that name.
        NotExportable: The photos are too small for it.
    """
    check_choice("backbone", name, BACKBONES)
    least = _SOURCES[name].least_side
    if side < least:
        raise NotExportable(f"{name} needs photos of at least {least} pixels a side, not {side}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _SOURCES[name].build(side).eval()


def normalisation(name: str) -> Normalisation:
    """Normalisation of the photos that a backbone of `BACKBONES` was trained on."""
    return _SOURCES[name].normalisation


def build_head(name: str, features: int, classes: int, seed: int) -> nn.Module:
    """A head with weights drawn from `seed`: `linear`, or `hidden` (FC 512, ReLU, FC classes).

    Raises:
        UnknownChoice: There is no head of that name.
    """
    check_choice("head", name, HEADS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "linear":
            return nn.Sequential(OrderedDict(classifier=nn.Linear(features, classes)))
        return Classified(nn.Linear(features, FEATURES), nn.Linear(FEATURES, classes))


def load_weights(name: str, backbone: nn.Module, path: Path) -> None:
    """Load a state dict (`torch.save`, or safetensors by its suffix) without the classifier in it.

    Raises:
        WeightsUnusable: It cannot be read without running code, or keys or shapes do not fit; the text names them.
    """
    state_dict.load_into(backbone, _SOURCES[name].adapt(state_dict.read(path)), path.name)


def load_pretrained(name: str, backbone: nn.Module) -> None:
    """Load weights trained on ImageNet-1K: downloaded, or from an installed package.

    Raises:
        WeightsUnusable: They are not available, or damaged; the text says what to do.
    """
    source = _SOURCES[name]
    state_dict.load_into(backbone, source.adapt(source.pretrained()), source.origin)
