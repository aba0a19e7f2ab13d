"""Cross-entropy of softmax over the classes, in nats: the local loss of FedAvg (McMahan et al. 2017)."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from fedlens_export.hyper import Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives.objective import (
    Batch,
    Forward,
    Objective,
    Outcome,
    masked_mean,
    minimised,
    without_padding,
)

Loss = Callable[[Tensors], tuple[Tensor, tuple[Tensor, Tensors]]]
"""From trained weights to a loss, logits and new buffers."""


def mean(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """The mean over the real rows."""
    return masked_mean(functional.cross_entropy(logits, labels, reduction="none"), mask)


def of(forward: Forward, batch: Batch, changed: Callable[[Tensor], Tensor] = lambda logits: logits) -> Loss:
    """The loss of a batch, of the model's logits after a change; the logits that it gives are the model's own."""
    inputs = without_padding(batch.inputs, batch.mask)

    def loss(trained: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
        logits, buffers = forward(trained, inputs)
        return mean(changed(logits), batch.labels, batch.mask), (logits, buffers)

    return loss


def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars) -> Outcome:
    """Mean cross-entropy over the real rows, and its gradients; references and hyper-parameters are not used."""
    del references, hyper
    return minimised(of(forward, batch), weights)


OBJECTIVE = Objective(name="cross_entropy", hyper=(), references=(), gradients=gradients)
