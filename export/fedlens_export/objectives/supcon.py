"""FedClassAvg's local objective: supervised contrast of two views, plus cross-entropy, plus a pull on the classifier.

Papers: Khosla et al., NeurIPS 2020, arXiv:2004.11362, Equation 2 (L_out); Jang et al., ICPP 2022, arXiv:2210.16748,
Equations 3 to 5: `SupCon(F(x'), F(x'')) + CE(C(F(x')), y) + rho * R`.

    paper      here                        meaning
    x', x''    batch.inputs[:, 0], [:, 1]  two random views of a photo
    F(x)       features                    the extractor's output, before the ReLU in front of the classifier
    i, a       rows                        views of photos: a row is contrasted with every other one
    P(i)       positive                    other rows of the same class
    tau        hyper["temperature"]
    -          hyper["base_temperature"]   the loss is scaled by temperature / base_temperature
    -          hyper["contrast"]           weight of the contrast; 0 turns it off
    rho, R     as in `classifier_proximal`

The FedClassAvg paper allows two readings: `supcon` is Khosla's, on features of length 1 with temperature 0.07;
`supcon_raw` follows the authors' code, on unscaled features with temperature 100 and base 0.07.

Deviations: the sum over other rows is a masked log-sum-exp from the greatest of them, since the code's form gives NaN
for long raw features. A row without a positive is left out of the mean; if no row has one, the contrast is 0. Both
views pass the model at once, so that BatchNorm sees both, as in the code, even with the contrast off.
"""

from functools import partial

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.nn import functional

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import classifier_proximal
from fedlens_export.objectives.objective import Batch, Forward, Objective, Outcome, masked_mean, without_padding

VIEWS = 2
_NOTHING = -1e30
_LEAST_SQUARE = 1e-12


def unit(features: Tensor) -> Tensor:
    """Each row at length 1; rows shorter than 1e-6 stay shorter, and a row of zeros stays."""
    return features * torch.rsqrt((features * features).sum(-1, keepdim=True).clamp(min=_LEAST_SQUARE))


def loss(
    rows: Tensor, labels: Tensor, mask: Tensor, temperature: Tensor, base_temperature: Tensor, *, normalised: bool
) -> Tensor:
    """The supervised contrastive loss of B photos in V views each, a scalar.

    Args:
        rows: Features, floats [V * B, F]: the first view of every photo, then the second, and so on.
        labels: int64 [B].
        mask: Floats [B], 1 for a photo that counts.
        temperature: Scalar above 0.
        base_temperature: Scalar above 0; equal to the temperature it has no effect.
        normalised: Scale features to length 1 first.
    """
    views = rows.shape[0] // labels.shape[0]
    labels, mask = torch.cat([labels] * views), torch.cat([mask] * views)
    if normalised:
        rows = unit(rows)
    similarity = rows @ rows.T / temperature
    number = torch.arange(labels.shape[0])
    other = (number.unsqueeze(1) != number.unsqueeze(0)) & (mask.unsqueeze(1) > 0) & (mask.unsqueeze(0) > 0)
    positive = other & (labels.unsqueeze(1) == labels.unsqueeze(0))
    # Not an infinity: its difference with itself is NaN.
    greatest = torch.where(other, similarity, _NOTHING).amax(1, keepdim=True).detach()
    greatest = torch.where(greatest > 0.1 * _NOTHING, greatest, 0.0)
    shifted = torch.where(other, similarity - greatest, 0.0)
    total = torch.where(other, torch.exp(shifted), 0.0).sum(1, keepdim=True)
    log_probability = shifted - torch.log(torch.where(total > 0, total, 1.0))
    count = torch.where(positive, 1.0, torch.zeros_like(similarity)).sum(1)
    mean = torch.where(positive, log_probability, 0.0).sum(1) / count.clamp(min=1)
    has_positive = (count > 0).to(rows.dtype)
    return -(temperature / base_temperature) * masked_mean(mean, has_positive)


def gradients(
    forward: Forward,
    weights: Tensors,
    batch: Batch,
    references: References,
    hyper: Scalars,
    *,
    normalised: bool,
) -> Outcome:
    """Loss and gradients of the three terms, and the logits of the first view."""
    inputs = without_padding(batch.inputs, batch.mask)
    rows = torch.cat([inputs[:, view] for view in range(VIEWS)])
    # To the cross-entropy, the other views are padding.
    first = torch.cat([batch.mask, *[torch.zeros_like(batch.mask)] * (VIEWS - 1)])
    labels = torch.cat([batch.labels] * VIEWS)

    def objective(trained: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
        features, logits, buffers = forward.with_features(trained, rows)
        # A weight of 0 alone would let a NaN through.
        compared = torch.where(hyper["contrast"] > 0, features, 0.0)
        contrast = loss(
            compared, batch.labels, batch.mask, hyper["temperature"], hyper["base_temperature"], normalised=normalised
        )
        losses = functional.cross_entropy(logits, labels, reduction="none")
        return hyper["contrast"] * contrast + masked_mean(losses, first), (logits, buffers)

    found, (value, (logits, buffers)) = grad_and_value(objective, has_aux=True)(weights)
    of_first_view = logits.reshape(VIEWS, -1, logits.shape[1])[0]
    outcome = Outcome(gradients=found, loss=value, logits=of_first_view, buffers=buffers)
    return classifier_proximal.pulled(outcome, weights, references, hyper)


def _objective(name: str, temperature: float, *, normalised: bool) -> Objective:
    return Objective(
        name=name,
        hyper=(
            Hyper("contrast", 1.0, 0.0, 1000.0),
            Hyper("temperature", temperature, 1e-3, 1e4),
            Hyper("base_temperature", 0.07, 1e-3, 1e4),
            *classifier_proximal.HYPER,
        ),
        references=(classifier_proximal.CLASSIFIER,),
        gradients=partial(gradients, normalised=normalised),
        views=VIEWS,
        needs_features=True,
    )


NORMALISED = _objective("supcon", 0.07, normalised=True)
RAW = _objective("supcon_raw", 100.0, normalised=False)
