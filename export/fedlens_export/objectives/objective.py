"""Inputs and outputs of every objective, and the treatment of padding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedlens_export.hyper import ROLES, Hyper, Scalars
from fedlens_export.network import References, Tensors


class Forward(Protocol):
    """The model in training: from trained weights, and rows whose padding is zero."""

    def __call__(self, trained: Tensors, rows: Tensor) -> tuple[Tensor, Tensors]:
        """Logits and new buffers."""
        ...

    def with_features(self, trained: Tensors, rows: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        """The classifier's inputs before their ReLU, logits and new buffers."""
        ...


@dataclass(frozen=True)
class Batch:
    """Rows of one step.

    Attributes:
        inputs: float32 [B, ...], or [B, V, ...] for an objective over V views; padding may hold anything.
        labels: int64 [B], each in 0 .. classes - 1, padding too.
        mask: float32 [B], 1 for a real row and 0 for padding.
    """

    inputs: Tensor
    labels: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Outcome:
    """Gradients by weight, the mean loss over real rows, logits [B, classes], and new buffers of one batch."""

    gradients: Tensors
    loss: Tensor
    logits: Tensor
    buffers: Tensors


@dataclass(frozen=True)
class Reference:
    """A set of tensors, named and shaped like trained weights, that an objective compares with.

    Attributes:
        name: As in a manifest.
        roles: Roles of the weights that it covers.
    """

    name: str
    roles: tuple[str, ...] = ROLES


@dataclass(frozen=True)
class Objective:
    """A loss with its gradients.

    Attributes:
        name: As in a manifest.
        hyper: Scalars besides the optimiser's.
        references: Sets of tensors that it compares with.
        gradients: From forward, weights, batch, references and hyper-parameters to the outcome.
        views: Number of augmented views of each photo in a batch; 0: the photo itself.
        needs_features: Whether it calls `Forward.with_features`.
    """

    name: str
    hyper: tuple[Hyper, ...]
    references: tuple[Reference, ...]
    gradients: Callable[[Forward, Tensors, Batch, References, Scalars], Outcome]
    views: int = 0
    needs_features: bool = False


def without_padding(inputs: Tensor, mask: Tensor) -> Tensor:
    """`inputs` with zeros in the rows that `mask` leaves out, since a NaN there would spoil every row's gradient."""
    rows = mask.reshape(-1, *[1] * (inputs.dim() - 1))
    return torch.where(rows > 0, inputs, 0.0)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of `values`, float32 [B], over the rows where `mask` is 1; 0 if there are none."""
    return torch.where(mask > 0, values, 0.0).sum() / mask.sum().clamp(min=1)
