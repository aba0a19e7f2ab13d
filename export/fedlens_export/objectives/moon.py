"""MOON: cross-entropy, and a contrast that draws features to the global model's and away from the client's last ones.

Paper: Li, He, Song, CVPR 2021, arXiv:2103.16257, Equations 3 and 4:
`CE + mu * mean_b -log(e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + e^{cos(z, z_prev)/tau}))`.

    paper          here                                   meaning
    z              features                               the model's features of a row
    z_glob         by references["global"]                the same by the model that the round started from
    z_prev         by references["previous"]              the same by the client's last trained model
    tau            hyper["tau"]
    mu             hyper["mu"]                            weight of the contrast; 0 turns it off

Both references have every tensor, with buffers, and pass rows in evaluation mode; no gradient goes into them.

Deviations: features are the classifier's inputs before their ReLU (FL-bench does so too); the authors put a projection
head of two FC layers there, which is a matter of the model. A feature vector of zeros has cosine 0 and gradient 0. One
previous model is kept; the authors' code can keep more.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import cross_entropy, proximal
from fedlens_export.objectives.objective import (
    ALL,
    Batch,
    Forward,
    Objective,
    Outcome,
    Reference,
    masked_mean,
    minimised,
    without_padding,
)

PREVIOUS = "previous"


def row_losses(features: Tensor, positive: Tensor, negatives: Sequence[Tensor], tau: Tensor) -> Tensor:
    """The contrast of each row, [B].

    Args:
        features: Floats [B, F].
        positive: Of the global model, [B, F].
        negatives: Of one or more previous models, each [B, F].
        tau: Scalar above 0.
    """
    directions = _unit(features)
    cosines = [(directions * _unit(other)).sum(-1) for other in (positive, *negatives)]
    shares = functional.log_softmax(torch.stack(cosines, 1) / tau, 1)
    return -torch.where(torch.arange(len(cosines)) < 1, shares, 0.0).sum(1)


def _unit(features: Tensor) -> Tensor:
    square = (features * features).sum(-1, keepdim=True)
    has_length = square > 0
    return torch.where(has_length, features * torch.rsqrt(torch.where(has_length, square, 1.0)), 0.0)


def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars) -> Outcome:
    """Cross-entropy and contrast, and their gradients."""
    inputs = without_padding(batch.inputs, batch.mask)
    positive, negative = (forward.frozen_features(references[name], inputs) for name in (proximal.REFERENCE, PREVIOUS))

    def loss(trained: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
        features, logits, buffers = forward.with_features(trained, inputs)
        contrast = masked_mean(row_losses(features, positive, [negative], hyper["tau"]), batch.mask)
        return cross_entropy.mean(logits, batch.labels, batch.mask) + hyper["mu"] * contrast, (logits, buffers)

    return minimised(loss, weights)


OBJECTIVE = Objective(
    name="moon",
    hyper=(Hyper("mu", 5.0, 0.0, 1000.0), Hyper("tau", 0.5, 1e-3, 1e4)),
    references=(Reference(proximal.REFERENCE, kinds=ALL), Reference(PREVIOUS, kinds=ALL)),
    gradients=gradients,
    needs_features=True,
)
