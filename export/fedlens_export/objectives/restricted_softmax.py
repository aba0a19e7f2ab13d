"""FedRS: cross-entropy of logits that are scaled down for classes of which the client has no photos.

Paper: Li, Zhan, KDD 2021: cross-entropy of `s_c * (w_c h + b_c)`, where `s_c` is 1 for the client's own classes and
alpha for others. A weight of a class that the client lacks is then pushed away less.

    paper      here                                   meaning
    n_k^c      references["label_counts"]             the client's photos of class c
    alpha      hyper["alpha"]                         scale of a class without photos; 1: plain cross-entropy
    -          hyper["soft"]                          1: the scale of the authors' code

With `soft` the scale is `alpha + (1 - alpha) n_c / max n`, as in the authors' code; that is the paper's where the
classes present are equally frequent. The logits that a step gives, and `predict`, are not scaled.

Deviation: the authors' code leaves the bias out of the loss and clips gradients; here the whole logit is scaled, as
printed.
"""

import torch
from torch import Tensor

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import cross_entropy
from fedlens_export.objectives.objective import LABEL_COUNTS, Batch, Forward, Objective, Outcome, minimised


def scale(counts: Tensor, alpha: Tensor, soft: Tensor) -> Tensor:
    """The factor of each class's logit, [C], from the client's photos of it."""
    most = counts.amax(0, keepdim=True)
    own = torch.where(counts > 0, torch.ones_like(counts), torch.zeros_like(counts))
    share = counts / torch.where(most > 0, most, torch.ones_like(most))
    return alpha + (1 - alpha) * torch.where(soft > 0, share, own)


def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars) -> Outcome:
    """Cross-entropy of the scaled logits, and its gradients."""
    counts = references[LABEL_COUNTS.name][LABEL_COUNTS.name]
    factors = scale(counts, hyper["alpha"], hyper["soft"])
    return minimised(cross_entropy.of(forward, batch, lambda logits: logits * factors), weights)


OBJECTIVE = Objective(
    name="restricted_softmax",
    hyper=(Hyper("alpha", 0.5, 0.0, 1.0), Hyper("soft", 0.0, 0.0, 1.0)),
    references=(LABEL_COUNTS,),
    gradients=gradients,
)
