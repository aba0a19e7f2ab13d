"""FedProx: cross-entropy plus a pull towards the broadcast model; and two other forms of such a pull.

Paper: Li et al., MLSys 2020, arXiv:1812.06127, Equation 2: `h(w) = F(w) + mu/2 * ||w - w_t||^2`.

    paper    here                    meaning
    w_t      references["global"]    the model that the round started from
    mu       hyper["mu"]             strength; 0 turns the term off

Each pull's gradient is a number for each tensor times `w - w_t`. It is added explicitly, which is cheaper than
differentiating the penalty. It covers the trained weights, and so no BatchNorm statistics.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import cross_entropy
from fedlens_export.objectives.objective import Batch, Forward, Objective, Outcome, Reference

REFERENCE = "global"


@dataclass(frozen=True)
class Pull:
    """A penalty on differences `d = w - w_t`.

    Attributes:
        value: The penalty, a scalar.
        slopes: By name of tensor, the scalar whose product with `d` is the gradient.
    """

    value: Tensor
    slopes: Tensors


def differences(weights: Mapping[str, Tensor], centre: Mapping[str, Tensor]) -> Tensors:
    """`w - w_t` for every tensor of `centre`, by name."""
    return {name: weights[name] - tensor for name, tensor in centre.items()}


def squared(difference: Mapping[str, Tensor], mu: Tensor) -> Pull:
    """FedProx's `mu/2 * ||d||^2`, over all tensors together."""
    return Pull(mu * 0.5 * squares(difference), dict.fromkeys(difference, mu))


def distance(difference: Mapping[str, Tensor], rho: Tensor) -> Pull:
    """The unsquared norm `rho * ||d||` over all tensors together (FedClassAvg's paper); its gradient at 0 is 0."""
    norm = torch.sqrt(squares(difference))
    slope = torch.where(norm > 0, rho / torch.where(norm > 0, norm, 1.0), 0.0)
    return Pull(rho * norm, dict.fromkeys(difference, slope))


def mean_squared(difference: Mapping[str, Tensor], mu: Tensor) -> Pull:
    """`mu/2 *` the sum over tensors of the mean of `d^2` (FedClassAvg's code)."""
    means = [squares({name: d}) * (1 / d.numel()) for name, d in difference.items()]
    slopes = {name: mu * (1 / d.numel()) for name, d in difference.items()}
    return Pull(mu * 0.5 * torch.stack(means).sum(), slopes)


def pulled(outcome: Outcome, difference: Mapping[str, Tensor], *pulls: Pull) -> Outcome:
    """Add these penalties to loss and gradients."""
    loss, gradients = outcome.loss, dict(outcome.gradients)
    for pull in pulls:
        loss = loss + pull.value
        for name, slope in pull.slopes.items():
            gradients[name] = torch.addcmul(gradients[name], difference[name], slope)
    return Outcome(gradients, loss, outcome.logits, outcome.buffers)


def squares(difference: Mapping[str, Tensor]) -> Tensor:
    """The sum of the squares of all tensors together, a scalar."""
    return inner(difference, difference)


def inner(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tensor:
    """The inner product of all tensors of `left` with those of `right`, a scalar."""
    # Two sums: one over everything is sequential in ExecuTorch and loses digits.
    return torch.stack([(tensor * right[name]).sum(-1).sum() for name, tensor in left.items()]).sum()


def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars) -> Outcome:
    """Cross-entropy with the proximal term, in gradients and loss."""
    outcome = cross_entropy.gradients(forward, weights, batch, references, hyper)
    difference = differences(weights, references[REFERENCE])
    return pulled(outcome, difference, squared(difference, hyper["mu"]))


OBJECTIVE = Objective(
    name="proximal",
    hyper=(Hyper("mu", 0.01, 0.0, 1000.0),),
    references=(Reference(REFERENCE),),
    gradients=gradients,
)
