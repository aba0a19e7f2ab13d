"""KT-pFL and FedMD: public photos whose scores a model learns from a teacher, in program `distil` beside `step`.

Papers: Zhang et al., NeurIPS 2021, arXiv:2111.02862, Equation 3 (KT-pFL); Li, Wang 2019, arXiv:1910.03581 (FedMD).

    paper      here                                meaning
    t          references["teacher"]["scores"]     the teacher's scores of a batch's rows, [B, C]
    z          logits
    T          hyper["temperature"]                KT-pFL's

    bundle's objective         `distil` minimises the mean over rows and classes of
    distil                     `t log t - t log softmax(z / T)`: KT-pFL's authors; no factor T^2
    distil_probabilities       `(softmax(z) - t)^2`: FedClassAvg's run of KT-pFL
    distil_scores              `|z - t|`: FedMD
    distil_scores_squared      `(z - t)^2`: FedMD with the squared error

`step` minimises cross-entropy on the client's own photos. KT-pFL's rows t need not add up to 1, and can be negative;
`t log t` has no gradient and counts 0 where t <= 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import cross_entropy
from fedlens_export.objectives.objective import (
    Batch,
    Forward,
    Objective,
    Outcome,
    Reference,
    Train,
    masked_mean,
    minimised,
    without_padding,
)

TEACHER = Reference("teacher", table={"scores": lambda sizes: (sizes.classes,)}, of_rows=True)
TEMPERATURE = Hyper("temperature", 10.0, 1e-3, 1e4)
_Errors = Callable[[Tensor, Tensor, Scalars], Tensor]


def divergence(logits: Tensor, teacher: Tensor, hyper: Scalars) -> Tensor:
    """The term of each row and class in `KL(t || softmax(z / T))`, [B, C]."""
    positive = teacher > 0
    entropy = torch.where(positive, teacher * torch.log(torch.where(positive, teacher, 1.0)), 0.0)
    return entropy - teacher * functional.log_softmax(logits / hyper[TEMPERATURE.name], 1)


def squared_of_probabilities(logits: Tensor, teacher: Tensor, hyper: Scalars) -> Tensor:
    """`(softmax(z) - t)^2`, [B, C]."""
    return squared(torch.exp(functional.log_softmax(logits, 1)), teacher, hyper)


def absolute(logits: Tensor, teacher: Tensor, hyper: Scalars) -> Tensor:
    """`|z - t|`, [B, C]; its gradient at 0 is 0."""
    del hyper
    difference = logits - teacher
    return torch.where(difference > 0, difference, torch.where(difference < 0, -difference, 0.0))


def squared(logits: Tensor, teacher: Tensor, hyper: Scalars) -> Tensor:
    """`(z - t)^2`, [B, C]."""
    del hyper
    return (logits - teacher) ** 2


def _objective(name: str, errors: _Errors, predictions: str, hyper: tuple[Hyper, ...] = ()) -> Objective:
    def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, given: Scalars) -> Outcome:
        inputs = without_padding(batch.inputs, batch.mask)
        teacher = without_padding(references[TEACHER.name]["scores"], batch.mask)

        def loss(trained: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
            logits, buffers = forward(trained, inputs)
            return masked_mean(errors(logits, teacher, given).mean(1), batch.mask), (logits, buffers)

        return minimised(loss, weights)

    teaching = Objective(name=name, hyper=hyper, references=(TEACHER,), gradients=gradients)
    return Objective(
        name=name,
        hyper=(),
        references=(),
        gradients=cross_entropy.gradients,
        trains=(Train("distil", teaching),),
        programs=(predictions,),
    )


DIVERGENCE = _objective("distil", divergence, "predictions", (TEMPERATURE,))
PROBABILITIES = _objective("distil_probabilities", squared_of_probabilities, "predictions")
SCORES = _objective("distil_scores", absolute, "scores")
SCORES_SQUARED = _objective("distil_scores_squared", squared, "scores")
