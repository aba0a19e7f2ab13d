"""Larger CNNs that papers name beside torchvision's: FedConcat's VGG-9, and AlexNet with its own FC layers for FedNS.

    vgg9            conv 3x3 32, 64, max pool 2; 128, 128, max pool 2; 256, 256, max pool 2; FC 512; FC 512; FC classes
    fedns_alexnet   torchvision's: five convolutions, mean over 6x6 fields; FC 4096; FC 4096; FC classes

ReLU follows every layer but the last. VGG-9's widths are those of FedConcat's code (Diao et al., AAAI 2024), which has
them from FedMA (Wang et al., ICLR 2020). FedNS names AlexNet without widths or a size of photos. All dropout is left
out, because a step is a function of its arguments alone.
"""

from collections import OrderedDict

from torch import nn

from fedlens_export.models.classified import Classified, classified

LEAST_SIDE = {"vgg9": 16, "fedns_alexnet": 63}
"""Least side of photos, in pixels, by model."""
MODELS = tuple(LEAST_SIDE)


def build(name: str, classes: int, side: int) -> nn.Module:
    """One of `MODELS` for photos of `side` pixels, with weights drawn from torch's global generator."""
    return _vgg9(classes, side) if name == "vgg9" else _alexnet(classes)


def _vgg9(classes: int, side: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels, middle, out in ((3, 32, 64), (64, 128, 128), (128, 256, 256)):
        layers += [nn.Conv2d(channels, middle, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(middle, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(256 * (side // 8) ** 2, 512), nn.ReLU()]
    return classified(nn.Sequential(*layers), 512, classes)


def _alexnet(classes: int) -> nn.Module:
    # Late, because the import takes seconds which few other models need.
    from torchvision.models import alexnet  # type: ignore[import-untyped]  # it ships no types

    network = alexnet(weights=None, num_classes=classes)
    _, first, _, _, second, _, classifier = network.classifier
    assert isinstance(classifier, nn.Linear)
    layers = nn.Sequential(network.features, network.avgpool, nn.Flatten(), first, nn.ReLU())
    return Classified(nn.Sequential(OrderedDict(layers=layers, fc=second)), classifier)
