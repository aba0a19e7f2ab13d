"""A frozen backbone by name, as the module that has its network describes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedlens_export.network import IMAGENET, Normalisation


@dataclass(frozen=True, kw_only=True)
class Source:
    """A network that gives features, and where its trained weights come from.

    Attributes:
        build: From the side of the photos, in pixels, to the network: normalised photos to features, with weights drawn
            from torch's global generator.
        adapt: From a state dict as its authors write it to the tensors of the network. What it does not know, it leaves
            as it is.
        pretrained: Gives the state dict that was trained on ImageNet-1K; raises `WeightsUnusable`.
        origin: Of that state dict, for people.
        normalisation: Of the photos that it was trained on.
        least_side: Of the photos that its layers leave something of, in pixels.
    """

    build: Callable[[int], nn.Module]
    adapt: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    pretrained: Callable[[], dict[str, Tensor]]
    origin: str
    normalisation: Normalisation = IMAGENET
    least_side: int = 32
