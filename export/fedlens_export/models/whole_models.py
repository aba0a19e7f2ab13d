"""Models by name that are trained as a whole, and the small CNNs of three papers among them.

    fedns_cnn    conv 5x5 32, ReLU, max pool 2; conv 5x5 64, ReLU, max pool 2; FC 1024, ReLU; FC 256, ReLU; FC classes
    lenet5       conv 5x5 6, ReLU, max pool 2; conv 5x5 16, ReLU, max pool 2; FC 120, ReLU; FC 84, ReLU; FC classes
    lenet5_bn    as lenet5, with BatchNorm between convolution and ReLU

Sources: FedNS for `fedns_cnn`; FedConcat's simple CNN for `lenet5`; pFedSim for `lenet5_bn`. Photos have three
channels; convolutions are unpadded, and nothing is left of photos below 16 pixels.

`small_models`, `torchvision_models` and `paper_models` have the others, which end in FC 512 (4096 in `fedns_alexnet`),
ReLU, and an FC layer `classifier`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedlens_export.errors import NotExportable, check_choice
from fedlens_export.models import paper_models, small_models, torchvision_models
from fedlens_export.models.classified import FeatureModel

MIN_SIDE = 16
"""The least side of photos, in pixels: 16 - 4 = 12, / 2 = 6, - 4 = 2, / 2 = 1."""

_LAYERS: dict[str, tuple[tuple[int, int], tuple[int, int], bool]] = {
    "fedns_cnn": ((32, 64), (1024, 256), False),
    "lenet5": ((6, 16), (120, 84), False),
    "lenet5_bn": ((6, 16), (120, 84), True),
}
MODELS = (*_LAYERS, *small_models.MODELS, *torchvision_models.WHOLE, *paper_models.MODELS)
_LEAST_SIDE = {**dict.fromkeys(torchvision_models.WHOLE, torchvision_models.MIN_SIDE), **paper_models.LEAST_SIDE}


class SmallCnn(FeatureModel):
    """Two convolutions and three FC layers."""

    def __init__(self, channels: Sequence[int], hidden: Sequence[int], classes: int, side: int, norm: bool) -> None:
        """Draw weights for photos of `side` pixels; with `norm`, BatchNorm follows each convolution."""
        super().__init__()
        left = ((side - 4) // 2 - 4) // 2
        self.conv1 = nn.Conv2d(3, channels[0], 5)
        self.norm1: nn.Module = nn.BatchNorm2d(channels[0]) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(channels[0], channels[1], 5)
        self.norm2: nn.Module = nn.BatchNorm2d(channels[1]) if norm else nn.Identity()
        self.fc1 = nn.Linear(channels[1] * left * left, hidden[0])
        self.fc2 = nn.Linear(hidden[0], hidden[1])
        self.fc3 = nn.Linear(hidden[1], classes)

    def forward(self, photos: Tensor, *, with_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits, float32 [N, classes], of normalised photos, float32 [N, 3, side, side].

        With `with_features` the features before the last ReLU, float32 [N, F], and the logits.
        """
        x = torch.max_pool2d(torch.relu(self.norm1(self.conv1(photos))), 2)
        x = torch.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        features: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        logits: Tensor = self.fc3(torch.relu(features))
        return (features, logits) if with_features else logits


def build(name: str, classes: int, side: int, seed: int) -> nn.Module:
    """A model with initial weights drawn from `seed`.

    Raises:
        UnknownChoice: There is no model of that name.
        NotExportable: The photos are too small for it.
    """
    check_choice("model", name, MODELS)
    least = _LEAST_SIDE.get(name, MIN_SIDE)
    if side < least:
        raise NotExportable(f"{name} needs photos of at least {least} pixels a side, not {side}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name in torchvision_models.WHOLE:
            return torchvision_models.whole(name, classes)
        if name in small_models.MODELS:
            return small_models.build(name, classes, side)
        if name in paper_models.MODELS:
            return paper_models.build(name, classes, side)
        channels, hidden, norm = _LAYERS[name]
        return SmallCnn(channels, hidden, classes, side, norm)
