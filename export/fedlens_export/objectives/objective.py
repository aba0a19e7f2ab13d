"""Inputs and outputs of every objective, and the treatment of padding."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedlens_export.hyper import ROLES, Hyper, Scalars
from fedlens_export.network import References, Tensors

TRAINED = ("conv", "linear", "norm")
"""Kinds of exchangeable tensors that gradients train."""
ALL = (*TRAINED, "buffer")
"""All kinds of exchangeable tensors."""


class Forward(Protocol):
    """The model, from tensors, and rows whose padding is zero; in training mode unless said otherwise."""

    def __call__(self, trained: Tensors, rows: Tensor) -> tuple[Tensor, Tensors]:
        """Logits and new buffers."""
        ...

    def with_features(self, trained: Tensors, rows: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        """The classifier's inputs before their ReLU, logits and new buffers."""
        ...

    def frozen_features(self, reference: Tensors, rows: Tensor) -> Tensor:
        """The classifier's inputs before their ReLU, in evaluation mode, by a reference that has every tensor."""
        ...

    def classify(self, trained: Tensors, features: Tensor) -> Tensor:
        """Logits of the classifier for its inputs, float32 [N, d]."""
        ...


@dataclass(frozen=True)
class Batch:
    """Rows of one step.

    Attributes:
        inputs: float32 [B, ...], or [B, V, ...] for an objective over V views; padding may hold anything.
        labels: int64 [B], each in 0 .. classes - 1, padding too.
        mask: float32 [B], 1 for a real row and 0 for padding.
        uniforms: float32 [B, r] in 0..1, random numbers, for an objective that takes r of them; 1 does occur in trials.
    """

    inputs: Tensor
    labels: Tensor
    mask: Tensor
    uniforms: Tensor | None = None


@dataclass(frozen=True)
class Outcome:
    """Gradients by weight, the mean loss over real rows, logits [B, classes], and new buffers of one batch."""

    gradients: Tensors
    loss: Tensor
    logits: Tensor
    buffers: Tensors


class Sizes(NamedTuple):
    """Number of classes C, and of inputs d of the classifier."""

    classes: int
    features: int


Shape = Callable[[Sizes], tuple[int, ...]]
"""The shape of a tensor of a table, for a model."""


@dataclass(frozen=True)
class Reference:
    """Tensors that an objective compares with: exchangeable ones, or a table.

    Attributes:
        name: As in a manifest.
        roles: Roles of the exchangeable tensors that it covers.
        kinds: Their kinds.
        table: Instead of exchangeable tensors, float32 tensors of these names and shapes.
        of_rows: The table has such a tensor for each row of a public set; a batch has those of its rows.
        optional: A local plan may leave it out; its tensors are then zeros, and its presence is 0.
    """

    name: str
    roles: tuple[str, ...] = ROLES
    kinds: tuple[str, ...] = TRAINED
    table: Mapping[str, Shape] = field(default_factory=dict)
    of_rows: bool = False
    optional: bool = False


LABEL_COUNTS = Reference("label_counts", table={"label_counts": lambda sizes: (sizes.classes,)})
"""The client's number of photos of each class, float32 [C]."""


@dataclass(frozen=True)
class Train:
    """A further program of a bundle that trains, besides `step`.

    Attributes:
        name: Of the program.
        objective: The loss that it minimises.
        rate: The learning rate of plain gradient descent, by which it trains. None: by the bundle's optimiser.
        divisor: Its batch is the bundle's divided by this.
    """

    name: str
    objective: "Objective"
    rate: Hyper | None = None
    divisor: int = 1


@dataclass(frozen=True)
class Objective:
    """A loss with its gradients.

    Attributes:
        name: As in a manifest.
        hyper: Scalars besides the optimiser's.
        references: Sets of tensors that it compares with.
        gradients: From forward, weights, batch, references and hyper-parameters to the outcome.
        views: Number of augmented views of each photo in a batch; 0: the photo itself.
        needs_features: Whether it needs the classifier's inputs, and so a `Classified` model.
        uniforms: Random numbers for each row of a batch.
        trains: Further programs that train.
        programs: Names of programs that derive or predict, which a bundle has as well.
    """

    name: str
    hyper: tuple[Hyper, ...]
    references: tuple[Reference, ...]
    gradients: Callable[[Forward, Tensors, Batch, References, Scalars], Outcome]
    views: int = 0
    needs_features: bool = False
    uniforms: int = 0
    trains: tuple[Train, ...] = ()
    programs: tuple[str, ...] = ()


def minimised(loss: Callable[[Tensors], tuple[Tensor, tuple[Tensor, Tensors]]], weights: Tensors) -> Outcome:
    """The outcome of a loss, by its gradients; the loss also gives logits and new buffers."""
    found, (value, (logits, buffers)) = grad_and_value(loss, has_aux=True)(weights)
    return Outcome(gradients=found, loss=value, logits=logits, buffers=buffers)


def without_padding(inputs: Tensor, mask: Tensor) -> Tensor:
    """`inputs` with zeros in the rows that `mask` leaves out, since a NaN there would spoil every row's gradient."""
    rows = mask.reshape(-1, *[1] * (inputs.dim() - 1))
    return torch.where(rows > 0, inputs, 0.0)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of `values`, float32 [B], over the rows where `mask` is 1; 0 if there are none."""
    return torch.where(mask > 0, values, 0.0).sum() / mask.sum().clamp(min=1)


def one_hot(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """Rows of 0 and a 1 at the label, [B, classes], in the type of `like`; a product with a table gathers its rows."""
    return (labels.unsqueeze(1) == torch.arange(classes).unsqueeze(0)).to(like.dtype)
