"""Description of a frozen backbone by the module that has its network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedlens_export.network import IMAGENET, Normalisation


@dataclass(frozen=True, kw_only=True)
class Source:
    """A network that gives features, and the origin of its trained weights.

    Attributes:
        build: From the side of the photos, in pixels, to the network: normalised photos to features, with weights drawn
            from torch's global generator.
        adapt: From a state dict as its authors write it to the tensors of the network. Unknown tensors stay in it.
        pretrained: Gives the state dict that was trained on ImageNet-1K; raises `WeightsUnusable`.
        origin: Source of that state dict, for people.
        normalisation: Normalisation of the photos that it was trained on.
        least_side: Least side of photos, in pixels; of smaller photos the layers leave nothing.
    """

    build: Callable[[int], nn.Module]
    adapt: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    pretrained: Callable[[], dict[str, Tensor]]
    origin: str
    normalisation: Normalisation = IMAGENET
    least_side: int = 32
