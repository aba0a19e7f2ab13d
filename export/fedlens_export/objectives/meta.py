"""Per-FedAvg: cross-entropy after a step of gradient descent on other rows, so that the model adapts well.

Paper: Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, arXiv:2002.07948, Algorithm 1 and Equations 8 to 10: with
`w' = w - alpha grad f(w; D1)`, FO steps along `g = grad f(w'; D2)`, HF along `g - alpha H(w; D3) g`.

    paper      here                         meaning
    D1, D2     even rows, odd rows          of a batch, counted from 0
    D3         D1
    alpha      hyper["alpha"]               learning rate of the inner step, and of the program `fine_tune`
    beta       the optimiser's rates        of the step along the gradient that is found here

With D3 = D1, HF's gradient is that of `f(w - alpha grad f(w; D1); D2)` by w, and is computed so: exactly, by
differentiating twice. The paper approximates the product with H by differences of gradients.

A batch of one row uses it for both D1 and D2. The loss is that on D2 by w'; logits of even rows are by w, of odd rows
by w'. New BatchNorm statistics are those of D2 alone. `fine_tune`, for personal evaluation, is plain gradient descent
of cross-entropy in batches as large as D1.
"""

from functools import partial

import torch
from torch import Tensor
from torch.func import grad

from fedlens_export.hyper import MAX_LEARNING_RATE, Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import cross_entropy
from fedlens_export.objectives.objective import Batch, Forward, Objective, Outcome, Train, minimised

ALPHA = Hyper("alpha", 0.01, 0.0, MAX_LEARNING_RATE)


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """D1 and D2; real rows come first in a batch."""
    first, second = (
        Batch(_every_other(batch.inputs, i), _every_other(batch.labels, i), _every_other(batch.mask, i)) for i in (0, 1)
    )
    has_second = second.mask.sum() > 0
    return first, Batch(
        torch.where(has_second, second.inputs, first.inputs),
        torch.where(has_second, second.labels, first.labels),
        torch.where(has_second, second.mask, first.mask),
    )


def _every_other(rows: Tensor, start: int) -> Tensor:
    if rows.shape[0] % 2:
        rows = torch.cat([rows, torch.zeros_like(rows[:1])])
    return rows.reshape(-1, 2, *rows.shape[1:])[:, start]


def gradients(
    forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars, *, exact: bool
) -> Outcome:
    """The loss on D2 after a step on D1, and its gradients, with or without those through the step."""
    del references
    first, second = halves(batch)

    def loss(trained: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
        inner, (before, _) = grad(cross_entropy.of(forward, first), has_aux=True)(trained)
        moves = inner if exact else {name: gradient.detach() for name, gradient in inner.items()}
        adapted = {name: weight - hyper["alpha"] * moves[name] for name, weight in trained.items()}
        value, (after, buffers) = cross_entropy.of(forward, second)(adapted)
        logits = torch.stack([before.detach(), after], 1).reshape(-1, after.shape[1])
        return value, (logits[: len(batch.mask)], buffers)

    return minimised(loss, weights)


def _objective(name: str, *, exact: bool) -> Objective:
    return Objective(
        name=name,
        hyper=(ALPHA,),
        references=(),
        gradients=partial(gradients, exact=exact),
        trains=(Train("fine_tune", cross_entropy.OBJECTIVE, rate=ALPHA, divisor=2),),
    )


FIRST_ORDER = _objective("meta_fo", exact=False)
EXACT = _objective("meta_hf", exact=True)
