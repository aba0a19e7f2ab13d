"""Four small CNNs of different architectures, for federations that share nothing but a classifier.

Each has at most 2 million multiply-adds for a photo of 32 x 32 pixels, and ends in FC 512, ReLU, FC classes.

    small_plain       three convolutions with max pooling, no normalisation
    small_residual    BatchNorm and three residual blocks (He et al., CVPR 2016)
    small_separable   depthwise and pointwise convolutions (Howard et al., arXiv:1704.04861)
    small_inception   two modules of four branches (Szegedy et al., CVPR 2015), with BatchNorm
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedlens_export.models.classified import Mean, classified


class _Residual(nn.Module):
    """`relu(x + f(x))` with two 3 x 3 convolutions; a 1 x 1 convolution fits `x` where channels or sides change."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(channels, out, 3, stride)
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out))
        same = stride == 1 and channels == out
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(maps)) + self.shortcut(maps))


class _Inception(nn.Module):
    """Four branches side by side: 1 x 1; 3 x 3 and 5 x 5 behind a narrow 1 x 1; 1 x 1 behind max pooling."""

    def __init__(self, channels: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> None:
        super().__init__()
        self.one = _convolution(channels, one, 1)
        self.three = nn.Sequential(_convolution(channels, three[0], 1), _convolution(*three, 3))
        self.five = nn.Sequential(_convolution(channels, five[0], 1), _convolution(*five, 5))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), _convolution(channels, pooled, 1))

    def forward(self, maps: Tensor) -> Tensor:
        return torch.cat([self.one(maps), self.three(maps), self.five(maps), self.pooled(maps)], 1)


def _convolution(channels: int, out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
    convolution = nn.Conv2d(channels, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU())


def _separable(channels: int, out: int, stride: int) -> nn.Module:
    return nn.Sequential(_convolution(channels, channels, 3, stride, groups=channels), _convolution(channels, out, 1))


def _plain(side: int) -> tuple[nn.Module, int]:
    layers: list[nn.Module] = []
    for channels, out in ((3, 16), (16, 20), (20, 32)):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten()), 32 * (side // 8) ** 2


def _residual(_side: int) -> tuple[nn.Module, int]:
    blocks = (_Residual(12, 12, 1), _Residual(12, 24, 2), _Residual(24, 48, 2))
    return nn.Sequential(_convolution(3, 12, 3, 2), *blocks, Mean()), 48


def _separables(_side: int) -> tuple[nn.Module, int]:
    blocks = (_separable(16, 32, 2), _separable(32, 64, 1), _separable(64, 96, 2), _separable(96, 128, 2))
    return nn.Sequential(_convolution(3, 16, 3), *blocks, Mean()), 128


def _inception(_side: int) -> tuple[nn.Module, int]:
    modules = (
        _Inception(16, 8, (8, 16), (4, 8), 8),
        nn.MaxPool2d(3, 2, 1),
        _Inception(40, 24, (16, 32), (8, 16), 24),
        nn.MaxPool2d(3, 2, 1),
    )
    return nn.Sequential(_convolution(3, 16, 3, 2), *modules, Mean()), 96


_LAYERS: dict[str, Callable[[int], tuple[nn.Module, int]]] = {
    "small_plain": _plain,
    "small_residual": _residual,
    "small_separable": _separables,
    "small_inception": _inception,
}
MODELS = tuple(_LAYERS)


def build(name: str, classes: int, side: int) -> nn.Module:
    """One of `MODELS` for photos of `side` pixels, at least 16, with weights drawn from torch's global generator."""
    return classified(*_LAYERS[name](side), classes)
