"""What every objective gets and gives, and how padding is left out of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlens_export.hyper import Hyper
from fedlens_export.network import Tensors

Forward = Callable[[Tensors, Tensor], tuple[Tensor, Tensors]]
"""From trained weights and a batch without padding's content to logits and new buffers."""


@dataclass(frozen=True)
class Batch:
    """Rows to learn from.

    Attributes:
        inputs: float32 [B, ...]; padding may hold anything.
        labels: int64 [B], each in 0 .. classes - 1, padding too.
        mask: float32 [B], 1 for a real row and 0 for padding.
    """

    inputs: Tensor
    labels: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Outcome:
    """What one batch says: gradients by weight, the mean loss over real rows, logits [B, classes], new buffers."""

    gradients: Tensors
    loss: Tensor
    logits: Tensor
    buffers: Tensors


@dataclass(frozen=True)
class Objective:
    """A loss with its gradients.

    Attributes:
        name: As in a manifest.
        hyper: Scalars beside those of the optimiser.
        references: Sets of tensors, named and shaped like the trained weights, that it compares with.
        gradients: From forward, weights, batch, references and hyper-parameters to the outcome.
    """

    name: str
    hyper: tuple[Hyper, ...]
    references: tuple[str, ...]
    gradients: Callable[[Forward, Tensors, Batch, Mapping[str, Tensors], Mapping[str, Tensor]], Outcome]


def without_padding(inputs: Tensor, mask: Tensor) -> Tensor:
    """`inputs` with zeros in the rows that `mask` leaves out: a NaN there would spoil the gradient of every row."""
    rows = mask.reshape(-1, *[1] * (inputs.dim() - 1))
    return torch.where(rows > 0, inputs, 0.0)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of `values`, float32 [B], over the rows where `mask` is 1; 0 if there are none."""
    return torch.where(mask > 0, values, 0.0).sum() / mask.sum().clamp(min=1)
