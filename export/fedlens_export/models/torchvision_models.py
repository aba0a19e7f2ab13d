"""torchvision's networks: as models that are trained as a whole, and as frozen backbones.

Models trained as a whole end in FC 512, ReLU, FC classes. As in FedClassAvg (Jang et al., ICPP 2022), they are
torchvision's own for photos of 32 pixels too, although one pixel is left at the end. AlexNet is the exception: its
strides leave no pixel, so the authors replace it by three 3 x 3 convolutions and a mean over 3 x 3 fields. All dropout
is left out, because a step is a function of its arguments alone. GoogLeNet has no auxiliary heads.

FedConcat (Diao et al., AAAI 2024) names ResNet-50 too; its code begins with a 3 x 3 convolution of stride 1, without
pooling, and has no FC 512.

Frozen backbones give the features before their first FC layer. AlexNet gives the means of its last 256 channels: its FC
layers are 94 % of its weights, too much to send to a phone. MobileNetV2, MobileNetV3-Large and EfficientNet-B0 are
backbones only. EfficientNet-B0 skips no block at random during pretraining.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from fedlens_export.errors import WeightsUnusable
from fedlens_export.models.backbone_source import Source
from fedlens_export.models.classified import Mean, classified

MIN_SIDE = 32
SUFFIX = "_whole"


@dataclass(frozen=True)
class _Kind:
    """One of torchvision's networks.

    Attributes:
        torchvisions: Its name in torchvision.
        features: Number of features before its first FC layer.
        left_out: Prefixes of the tensors that a backbone does not have.
        options: Arguments of its constructor.
        least_side: Least side of photos, in pixels; of smaller photos the layers leave nothing.
        whole: Whether it can also be trained as a whole.
    """

    torchvisions: str
    features: int
    left_out: tuple[str, ...]
    options: Mapping[str, object]
    least_side: int = MIN_SIDE
    whole: bool = True


_KINDS = {
    "mobilenet_v3_small": _Kind("mobilenet_v3_small", 576, ("classifier.",), {}),
    "resnet18": _Kind("resnet18", 512, ("fc.",), {}),
    "resnet50": _Kind("resnet50", 2048, ("fc.",), {}),
    "shufflenet_v2": _Kind("shufflenet_v2_x1_0", 1024, ("fc.",), {}),
    "googlenet": _Kind("googlenet", 1024, ("fc.", "aux1.", "aux2."), {"aux_logits": False, "init_weights": True}),
    "alexnet": _Kind("alexnet", 256, ("classifier.",), {}, least_side=63),
    "mobilenet_v2": _Kind("mobilenet_v2", 1280, ("classifier.",), {}, whole=False),
    "mobilenet_v3_large": _Kind("mobilenet_v3_large", 960, ("classifier.",), {}, whole=False),
    "efficientnet_b0": _Kind("efficientnet_b0", 1280, ("classifier.",), {"stochastic_depth_prob": 0.0}, whole=False),
}
WHOLE = tuple(name + SUFFIX for name, kind in _KINDS.items() if kind.whole)


def whole(name: str, classes: int) -> nn.Module:
    """One of `WHOLE`, from normalised photos to logits, with weights drawn from torch's global generator."""
    kind = name.removesuffix(SUFFIX)
    if kind == "alexnet":
        return classified(_alexnet(), 256 * 3 * 3, classes)
    return classified(_network(kind), _KINDS[kind].features, classes)


def _frozen(name: str, side: int) -> nn.Module:
    network = _network(name)
    if name == "googlenet":
        # Its weights need photos normalised to -1..1; with this it converts ours.
        network.transform_input = True  # type: ignore[assignment]  # a plain attribute
    return network


def _without_classifier(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in state.items() if not key.startswith(_KINDS[name].left_out)}


def _pretrained(name: str) -> dict[str, Tensor]:
    """Weights downloaded once, then read from torch's cache."""
    from torchvision.models import get_model_weights  # type: ignore[import-untyped]  # it ships no types

    weights = get_model_weights(_KINDS[name].torchvisions)["IMAGENET1K_V1"]
    try:
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:  # no network, or what came is damaged
        raise WeightsUnusable(
            f"torchvision's weights for {name} cannot be downloaded ({error}); give a file with them "
            "(--backbone-weights FILE), or a folder of photos to train on first (--pretrain DIR)"
        ) from error


BACKBONES = {
    name: Source(
        build=partial(_frozen, name),
        adapt=partial(_without_classifier, name),
        pretrained=partial(_pretrained, name),
        origin="torchvision's weights",
        least_side=kind.least_side,
    )
    for name, kind in _KINDS.items()
}


def _network(name: str) -> nn.Module:
    # Late, because the import takes seconds which no other model needs.
    from torchvision.models import get_model

    kind = _KINDS[name]
    network: nn.Module = get_model(kind.torchvisions, weights=None, **kind.options)
    if "classifier." in kind.left_out:
        return nn.Sequential(OrderedDict(features=network.get_submodule("features"), mean=Mean()))
    network.fc = nn.Identity()
    if name == "googlenet":
        network.dropout = nn.Identity()
    return network


def _alexnet() -> nn.Module:
    layers: list[nn.Module] = []
    for channels, out, pool in ((3, 64, (2, 1, 1)), (64, 128, (2, 2, 1)), (128, 256, None)):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
        layers += [] if pool is None else [nn.MaxPool2d(*pool)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten())
