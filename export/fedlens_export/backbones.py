"""Backbones that are frozen, where their weights come from, and the heads that train on their features."""

from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from fedlens_export.classified import FEATURES, Classified
from fedlens_export.errors import NotExportable, UnknownChoice, WeightsUnusable

BACKBONES = ("mobilenet_v3_small",)
HEADS = ("linear", "hidden")
MIN_SIDE = 32


class MobileNetV3Small(nn.Module):
    """torchvision's MobileNetV3-Small without its classifier: 576 features a photo, of any size from 32 pixels."""

    def __init__(self) -> None:
        super().__init__()
        # Late, because the import takes seconds which no other model needs.
        from torchvision.models import mobilenet_v3_small  # type: ignore[import-untyped]  # it ships no types

        self.features = mobilenet_v3_small(weights=None).features

    def forward(self, photos: Tensor) -> Tensor:
        """Features, float32 [N, 576], of normalised photos."""
        found: Tensor = self.features(photos).mean((2, 3))
        return found


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
    if side < MIN_SIDE:
        raise NotExportable(f"{name} needs photos of at least {MIN_SIDE} pixels a side, not {side}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MobileNetV3Small().eval()


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


def load_weights(backbone: nn.Module, path: Path) -> None:
    """Read a state dict (`torch.save`, or safetensors by its suffix); a classifier in it is left out.

    Raises:
        WeightsUnusable: It cannot be read without running code, or keys or shapes do not fit; the text names them.
    """
    try:
        state = _read(path)
    except UnpicklingError as error:
        # torch's text would advise to load it anyway.
        raise WeightsUnusable(
            f"backbone weights {path.name} are no plain dict of tensors, and are not loaded"
        ) from error
    except (OSError, EOFError, ValueError, RuntimeError, KeyError) as error:
        raise WeightsUnusable(
            f"backbone weights {path.name} cannot be read as a state dict: {str(error) or 'it is cut short'}"
        ) from error
    _fill(backbone, state, path.name)


def download_weights(name: str, backbone: nn.Module) -> None:
    """Take torchvision's weights, trained on ImageNet-1K; they are kept in torch's cache.

    Raises:
        WeightsUnusable: There is no network, or the download failed.
    """
    from torchvision.models import MobileNet_V3_Small_Weights

    try:
        state = MobileNet_V3_Small_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        raise WeightsUnusable(
            f"torchvision's weights for {name} cannot be downloaded ({error}); give a file with them "
            "(--backbone-weights FILE), or a folder of photos to train on first (--pretrain DIR)"
        ) from error
    _fill(backbone, dict(state), "torchvision's weights")


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
    # An empty file, a folder and a missing file give OSError or EOFError, a foreign pickle UnpicklingError.
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}, not a dict of tensors")
    return state


def _fill(backbone: nn.Module, state: dict[str, Tensor], source: str) -> None:
    wanted = backbone.state_dict()
    given = {name: tensor for name, tensor in state.items() if not name.startswith("classifier.")}
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    if missing := sorted(wanted.keys() - given.keys() - counters):
        raise WeightsUnusable(f"{source}: {len(missing)} tensors are missing, the first is {missing[0]!r}")
    if unknown := sorted(given.keys() - wanted.keys()):
        raise WeightsUnusable(f"{source}: the backbone has no tensor {unknown[0]!r} ({len(unknown)} are unknown)")
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor) or tensor.shape != wanted[name].shape:
            found = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise WeightsUnusable(f"{source}: {name!r} is {found}, not {list(wanted[name].shape)}")
        if not torch.isfinite(tensor).all():
            raise WeightsUnusable(f"{source}: {name!r} holds a NaN or an infinity")
    backbone.load_state_dict({**{name: wanted[name] for name in counters}, **given})
