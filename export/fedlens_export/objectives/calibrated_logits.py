"""FedLC: cross-entropy of logits less a margin that grows for classes of which the client has few photos.

Paper: Zhang et al., ICML 2022, arXiv:2209.00189, Equation 8: the margin of class c is `tau * n_c^(-1/4)`.

    paper      here                           meaning
    n_c        references["label_counts"]     the client's photos of class c
    tau        hyper["tau"]                   size of the margins; 0 turns them off

The logits that a step gives, and `predict`, have no margin.

Deviations: the printed loss leaves the true class out of the sum, is unbounded below, and does not train; here, as in
all public code, the sum has every class. A class without photos counts 1e-8, a margin of 100 tau, as in FL-bench.
"""

import torch
from torch import Tensor

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import cross_entropy
from fedlens_export.objectives.objective import LABEL_COUNTS, Batch, Forward, Objective, Outcome, minimised

_ABSENT = 1e-8


def margins(counts: Tensor, tau: Tensor) -> Tensor:
    """The margin of each class, [C], from the client's photos of it."""
    return tau * torch.rsqrt(torch.sqrt(counts.clamp(min=_ABSENT)))


def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars) -> Outcome:
    """Cross-entropy of the logits less their margins, and its gradients."""
    found = margins(references[LABEL_COUNTS.name][LABEL_COUNTS.name], hyper["tau"])
    return minimised(cross_entropy.of(forward, batch, lambda logits: logits - found), weights)


OBJECTIVE = Objective(
    name="calibrated_logits", hyper=(Hyper("tau", 1.0, 0.0, 1000.0),), references=(LABEL_COUNTS,), gradients=gradients
)
