"""A model of one's own with a frozen convolution: small enough to be lowered to ExecuTorch within seconds."""

from collections import OrderedDict

import torch
from torch import nn

SIDE = 16


def model() -> nn.Module:
    """Convolution, ReLU, average pool, and two FC layers, `fc1` and `fc2`; the weights are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        layers = {
            "conv": nn.Conv2d(3, 6, 5, stride=3),
            "relu": nn.ReLU(),
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(6 * 4 * 4, 24),
            "relu1": nn.ReLU(),
            "fc2": nn.Linear(24, 10),
        }
        return nn.Sequential(OrderedDict(layers))
