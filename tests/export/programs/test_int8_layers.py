"""Quantising a layer: a clamp belongs to the sum before it, and biases make up for rounded weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlens_export.programs import quantisation, steps
from tests.export.programs.test_quantisation import draw


class Folded(nn.Module):
    """A convolution with BatchNorm and ReLU6."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        # Such that sums go far beyond 6.
        self.norm.weight = nn.Parameter(torch.full((4,), 30.0))

    def forward(self, photos: Tensor) -> Tensor:
        return nn.functional.relu6(self.norm(self.conv(photos)))


def folded() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Folded().eval()


@pytest.mark.slow
def test_a_clamp_is_part_of_the_sum_before_it_and_has_all_levels_for_what_is_left() -> None:
    integers: Any = quantisation.quantise(folded(), draw(0)).integers

    nodes = [node for node in integers.graph.nodes if "quantize_per_tensor" in str(node.target)]
    steps = {node.args[0].name: node.args[1] for node in nodes if ".quantize" in str(node.target)}
    # 255 steps between 0 and 6; none of them for the convolution's own sums.
    assert set(steps) == {"photos", "relu6"}
    assert steps["relu6"] == pytest.approx(6 / 255, rel=1e-3)


@pytest.mark.slow
def test_biases_make_up_for_what_rounding_weights_takes_from_the_mean() -> None:
    # Photos of noise about zero would have a mean that no weight changes.
    backbone, photos = folded(), [photo + 2 for photo in draw(0)]
    emulated = quantisation.quantise(backbone, photos).emulated
    tensors = steps.frozen_tensors(emulated)

    with torch.no_grad():
        scale = 30 / (1 + 1e-5) ** 0.5  # of a norm that has seen nothing
        weight = backbone.get_parameter("conv.weight") * scale
        summed = [
            torch.cat([nn.functional.conv2d(photo, each, bias, padding=1) for photo in photos]).mean((0, 2, 3))
            for each, bias in (
                (weight, None),
                (tensors["conv.weight"], None),
                (tensors["conv.weight"], tensors["conv.bias"]),
            )
        ]

    exact, rounded, corrected = summed
    # What is left is the rounding of a bias to the grid of the sums.
    assert (corrected - exact).abs().max() < 0.1 * (rounded - exact).abs().max()
