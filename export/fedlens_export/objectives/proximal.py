"""FedProx: cross-entropy plus a pull towards the broadcast model.

Paper: Li et al., MLSys 2020, arXiv:1812.06127, Equation 2: `h(w) = F(w) + mu/2 * ||w - w_t||^2`.

    paper    here                    meaning
    w_t      references["global"]    the model that the round started from
    mu       hyper["mu"]             strength; 0 turns the term off

The term's gradient `mu * (w - w_t)` is added by hand, which is cheaper than differentiating the penalty. It covers what
gradients train: no BatchNorm statistics.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedlens_export.hyper import Hyper
from fedlens_export.network import Tensors
from fedlens_export.objectives import cross_entropy
from fedlens_export.objectives.objective import Batch, Forward, Objective, Outcome

REFERENCE = "global"


def gradients(
    forward: Forward,
    weights: Tensors,
    batch: Batch,
    references: Mapping[str, Tensors],
    hyper: Mapping[str, Tensor],
) -> Outcome:
    """As `cross_entropy.gradients`, with the proximal term in gradients and loss."""
    outcome = cross_entropy.gradients(forward, weights, batch, references, hyper)
    mu = hyper["mu"]
    pulled: Tensors = {}
    distance = torch.zeros_like(outcome.loss)
    for name, weight in weights.items():
        difference = weight - references[REFERENCE][name]
        pulled[name] = torch.addcmul(outcome.gradients[name], difference, mu)
        # Two sums: one over everything is sequential in ExecuTorch and loses digits.
        distance = distance + (difference * difference).sum(-1).sum()
    return Outcome(pulled, outcome.loss + mu * 0.5 * distance, outcome.logits, outcome.buffers)


OBJECTIVE = Objective(
    name="proximal", hyper=(Hyper("mu", 0.01, 0.0, 1000.0),), references=(REFERENCE,), gradients=gradients
)
