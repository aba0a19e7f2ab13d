"""FedProto: cross-entropy, and a pull of each row's features to the mean features of its class over all clients.

Paper: Tan et al., AAAI 2022, arXiv:2105.00243, Equation 7: `L_S + lambda * L_R`; L_R as in the authors' code, the mean
of `(f - P_y)^2` over rows and features.

    paper      here                                          meaning
    f          features                                      the classifier's inputs, after their ReLU, [B, d]
    P_y        references["prototypes"]["prototypes"]        a row for each class, [C, d]
    -          references["prototypes"]["has"]               1 for a class that has a prototype, else 0, [C]
    lambda     hyper["lambda"]                               weight of the pull; 0 turns it off

A row whose class has no prototype adds 0 to L_R and counts in its mean; what the table holds for that class is ignored.
"""

import torch
from torch import Tensor

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import cross_entropy
from fedlens_export.objectives.objective import (
    Batch,
    Forward,
    Objective,
    Outcome,
    Reference,
    masked_mean,
    minimised,
    one_hot,
    without_padding,
)

PROTOTYPES = Reference(
    "prototypes",
    table={"prototypes": lambda sizes: (sizes.classes, sizes.features), "has": lambda sizes: (sizes.classes,)},
)


def row_losses(features: Tensor, labels: Tensor, prototypes: Tensor, has: Tensor) -> Tensor:
    """The mean over features of the squared distance of each row to its prototype, [B]; 0 if there is none."""
    chosen = one_hot(labels, has.shape[0], features) * has
    known = torch.where(has.unsqueeze(1) > 0, prototypes, 0.0)
    difference = features - chosen @ known
    return chosen.sum(1) * (difference * difference).mean(1)


def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars) -> Outcome:
    """Cross-entropy and pull, and their gradients."""
    inputs = without_padding(batch.inputs, batch.mask)
    table = references[PROTOTYPES.name]

    def loss(trained: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
        features, logits, buffers = forward.with_features(trained, inputs)
        distances = row_losses(features.relu(), batch.labels, table["prototypes"], table["has"])
        pull = masked_mean(distances, batch.mask)
        return cross_entropy.mean(logits, batch.labels, batch.mask) + hyper["lambda"] * pull, (logits, buffers)

    return minimised(loss, weights)


OBJECTIVE = Objective(
    name="prototypes",
    hyper=(Hyper("lambda", 1.0, 0.0, 1000.0),),
    references=(PROTOTYPES,),
    gradients=gradients,
    needs_features=True,
    programs=("class_sums", "class_means", "predict_nearest"),
)
