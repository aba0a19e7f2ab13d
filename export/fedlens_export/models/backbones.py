"""Backbones that are frozen, where their weights come from, and the heads that train on their features."""

from pathlib import Path

import torch
from torch import Tensor, nn

from fedlens_export.errors import NotExportable, UnknownChoice, WeightsUnusable
from fedlens_export.models import efficientnet_lite0, state_dict, torchvision_models
from fedlens_export.models.classified import FEATURES, Classified
from fedlens_export.network import Normalisation

_SOURCES = {**torchvision_models.BACKBONES, **efficientnet_lite0.BACKBONES}
BACKBONES = tuple(_SOURCES)
HEADS = ("linear", "hidden")


class Linear(nn.Module):
    """One FC layer."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(features, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Logits, float32 [N, classes]."""
        logits: Tensor = self.classifier(features)
        return logits


class Hidden(Classified):
    """FC 512, ReLU, FC classes."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(nn.Linear(features, FEATURES), nn.Linear(FEATURES, classes))


def build(name: str, side: int, seed: int) -> nn.Module:
    """A backbone in evaluation mode with weights drawn from `seed`.

    Raises:
        UnknownChoice: There is none of that name.
        NotExportable: The photos are too small for it.
    """
    if name not in BACKBONES:
        raise UnknownChoice(f"backbone {name!r} is unknown; there are {', '.join(BACKBONES)}")
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
    """A head with weights drawn from `seed`: `linear`, or `hidden` with 512 units and ReLU in between.

    Raises:
        UnknownChoice: There is none of that name.
    """
    check_head(name)
    kinds: dict[str, type[Linear] | type[Hidden]] = {"linear": Linear, "hidden": Hidden}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kinds[name](features, classes)


def check_head(name: str) -> None:
    """See whether there is a head of that name.

    Raises:
        UnknownChoice: There is none.
    """
    if name not in HEADS:
        raise UnknownChoice(f"head {name!r} is unknown; there are {', '.join(HEADS)}")


def load_weights(name: str, backbone: nn.Module, path: Path) -> None:
    """Read a state dict (`torch.save`, or safetensors by its suffix); a classifier in it is left out.

    Raises:
        WeightsUnusable: It cannot be read without running code, or keys or shapes do not fit; the text names them.
    """
    _fill(name, backbone, read_weights(path), path.name)


def load_pretrained(name: str, backbone: nn.Module) -> None:
    """Take the weights that were trained on ImageNet-1K: downloaded, or of an installed package.

    Raises:
        WeightsUnusable: They cannot be had, or are damaged; the text says what to do.
    """
    source = _SOURCES[name]
    _fill(name, backbone, source.pretrained(), source.origin)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict (`torch.save`, or safetensors by its suffix), by name.

    Raises:
        WeightsUnusable: It cannot be read without running code.
    """
    if path.suffix != ".safetensors":
        return state_dict.read(path)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise WeightsUnusable(f"{path} cannot be read as a state dict: {error}") from error


def _fill(name: str, backbone: nn.Module, state: dict[str, Tensor], source: str) -> None:
    wanted = backbone.state_dict()
    given = _SOURCES[name].adapt(state)
    counters = {key for key in wanted if key.endswith("num_batches_tracked")}
    if missing := sorted(wanted.keys() - given.keys() - counters):
        raise WeightsUnusable(f"{source}: {len(missing)} tensors are missing, the first is {missing[0]!r}")
    if unknown := sorted(given.keys() - wanted.keys()):
        raise WeightsUnusable(f"{source}: the backbone has no tensor {unknown[0]!r} ({len(unknown)} are unknown)")
    for key, tensor in given.items():
        if tensor.shape != wanted[key].shape:
            raise WeightsUnusable(f"{source}: {key!r} is {list(tensor.shape)}, not {list(wanted[key].shape)}")
        if not torch.isfinite(tensor).all():
            raise WeightsUnusable(f"{source}: {key!r} holds a NaN or an infinity")
    backbone.load_state_dict({**{key: wanted[key] for key in counters}, **given})
