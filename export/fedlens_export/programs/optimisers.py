"""Optimisers as pure functions, written so that a learning rate of 0 freezes a role bit by bit.

    paper    here       meaning
    t        steps      steps taken by the role, 0 before the first
    g        gradient   of the loss, without weight decay
    m, v     moments    SGD: `velocity`; Adam: `mean` and `square`, all zero at the start of a stage

Freezing multiplies with `on`, which is 1 or 0, because a `where` over whole tensors costs several times as much. With
`on` = 0 the moments are `1 * m + 0 * g = m` and the weights `w - 0 * m = w`. (Only a sign of zero could change: a
moment of -0 becomes +0, and a weight of -0 becomes +0 if its moment is negative. But moments start a stage at +0 and
stay there, so that weights of -0 stay too.)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedlens_export.errors import check_choice
from fedlens_export.hyper import ROLES, Hyper, Scalars, learning_rates
from fedlens_export.network import Tensors


@dataclass(frozen=True)
class Optimiser:
    """An update rule.

    Attributes:
        name: As in a manifest.
        moments: Names of the state tensors of each weight.
        counts: Whether the rule needs the number of steps.
        hyper: Its scalars, learning rates first.
        prepare: From hyper-parameters, learning rate, `on` and the number of steps, with this one, to the scalars of a
            role.
        update: From a weight, its gradient, its moments and the scalars of its role to the new weight and moments.
        rates: The name of each role's learning rate.
    """

    name: str
    moments: tuple[str, ...]
    counts: bool
    hyper: tuple[Hyper, ...]
    prepare: Callable[[Scalars, Tensor, Tensor, Tensor], Scalars]
    update: Callable[[Tensor, Tensor, Sequence[Tensor], Scalars], tuple[Tensor, Sequence[Tensor]]]
    rates: Mapping[str, str] = field(default_factory=lambda: {role: f"lr_{role}" for role in ROLES})

    def step(
        self,
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        moments: Mapping[str, Tensor],
        steps: Mapping[str, Tensor],
        roles: Mapping[str, str],
        hyper: Scalars,
    ) -> tuple[Tensors, Tensors, Tensors]:
        """One step for all weights.

        Args:
            weights: By name.
            gradients: By the same names.
            moments: By `<moment>/<weight>`.
            steps: Steps taken, by role; empty if the rule does not count them.
            roles: `extractor` or `classifier`, by name of weight.
            hyper: Hyper-parameters by name.

        Returns:
            New weights, moments and steps.
        """
        on = {role: self.is_on(hyper, role) for role in ROLES}
        after = {role: count + on[role] for role, count in steps.items()}
        scalars = {
            role: self.prepare(hyper, hyper[self.rates[role]], on[role], after.get(role, on[role])) for role in ROLES
        }
        new_weights: Tensors = {}
        new_moments: Tensors = {}
        for name, weight in weights.items():
            old = [moments[f"{moment}/{name}"] for moment in self.moments]
            new_weights[name], new = self.update(weight, gradients[name], old, scalars[roles[name]])
            new_moments.update({f"{moment}/{name}": t for moment, t in zip(self.moments, new, strict=True)})
        return new_weights, new_moments, after

    def is_on(self, hyper: Scalars, role: str) -> Tensor:
        """1 if the role trains, 0 if it is frozen, float32 scalar."""
        return (hyper[self.rates[role]] > 0).to(torch.float32)


def by_name(name: str) -> Optimiser:
    """An optimiser.

    Raises:
        UnknownChoice: There is no optimiser of that name.
    """
    check_choice("optimiser", name, OPTIMISERS)
    return OPTIMISERS[name]


def _prepare_sgd(hyper: Scalars, lr: Tensor, on: Tensor, _steps: Tensor) -> Scalars:
    return {
        "lr": lr,
        "on": on,
        "keep": on * hyper["momentum"] + (1 - on),
        "decay": on * hyper["weight_decay"],
    }


def _update_sgd(weight: Tensor, gradient: Tensor, moments: Sequence[Tensor], s: Scalars) -> tuple[Tensor, list[Tensor]]:
    velocity = torch.addcmul(torch.addcmul(moments[0] * s["keep"], gradient, s["on"]), weight, s["decay"])
    return torch.addcmul(weight, velocity, s["lr"], value=-1), [velocity]


def _prepare_adam(hyper: Scalars, lr: Tensor, on: Tensor, steps: Tensor) -> Scalars:
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    one = torch.ones_like(on)
    # A frozen role has taken no step, and 1 - beta^0 = 0 must divide nothing.
    correction1 = torch.where(on > 0, 1 - torch.pow(beta1, steps), one)
    correction2 = torch.where(on > 0, 1 - torch.pow(beta2, steps), one)
    return {
        "rate": lr / correction1,
        "keep1": on * beta1 + (1 - on),
        "keep2": on * beta2 + (1 - on),
        "add1": on * (1 - beta1),
        "add2": on * (1 - beta2),
        "root": torch.rsqrt(correction2),
        "eps": hyper["eps"],
        "decay": hyper["weight_decay"],
    }


def _update_adam(
    weight: Tensor, gradient: Tensor, moments: Sequence[Tensor], s: Scalars
) -> tuple[Tensor, list[Tensor]]:
    gradient = torch.addcmul(gradient, weight, s["decay"])
    mean = torch.addcmul(moments[0] * s["keep1"], gradient, s["add1"])
    square = torch.addcmul(moments[1] * s["keep2"], gradient * s["add2"], gradient)
    denominator = torch.sqrt(square) * s["root"] + s["eps"]
    return weight - mean * s["rate"] / denominator, [mean, square]


SGD = Optimiser(
    name="sgd",
    moments=("velocity",),
    counts=False,
    hyper=(
        *learning_rates(0.01),
        Hyper("momentum", 0.9, 0.0, 0.9999),
        Hyper("weight_decay", 0.0, 0.0, 1.0),
    ),
    prepare=_prepare_sgd,
    update=_update_sgd,
)
"""v = momentum * v + (g + weight_decay * w); w = w - lr * v. As in torch, without dampening or Nesterov momentum."""

ADAM = Optimiser(
    name="adam",
    moments=("mean", "square"),
    counts=True,
    hyper=(
        *learning_rates(0.001),
        Hyper("beta1", 0.9, 0.0, 0.9999),
        Hyper("beta2", 0.999, 0.0, 0.999999),
        Hyper("eps", 1e-8, 1e-12, 1.0),
        Hyper("weight_decay", 0.0, 0.0, 1.0),
    ),
    prepare=_prepare_adam,
    update=_update_adam,
)
"""Kingma and Ba, ICLR 2015, arXiv:1412.6980, Algorithm 1; weight decay is added to the gradient, as torch does."""


def plain(rate: Hyper) -> Optimiser:
    """Gradient descent without momentum: w = w - rate * g, for both roles."""
    return Optimiser(
        name="sgd",
        moments=(),
        counts=False,
        hyper=(rate,),
        prepare=lambda _hyper, lr, _on, _steps: {"lr": lr},
        update=lambda weight, gradient, _moments, s: (torch.addcmul(weight, gradient, s["lr"], value=-1), ()),
        rates=dict.fromkeys(ROLES, rate.name),
    )


OPTIMISERS = {optimiser.name: optimiser for optimiser in (SGD, ADAM)}
