"""FedGen: cross-entropy of real rows and of generated features, and a pull to the generator's idea of each class.

Paper: Zhu, Hong, Zhou, ICML 2021, arXiv:2105.10056, Algorithm 1, and the authors' code:
`CE(real) + (B'/B) alpha_t CE(c(G(y~)), y~) + beta_t KL(softmax(c(G(y))) || softmax(z))`.

    paper      here                           meaning
    G          references["generator"]        `W2 relu(W1 [eps, one-hot y] + b1) + b2`, of d features
    c          forward.classify               the classifier in training
    eps        batch.uniforms                 noise in 0..1, of its own for y~ and for y
    y~, B'     drawn, the real rows           a class for each real row, so that B' = B
    y, z       labels, logits                 of the real rows
    -          generator/classes, [C]         1 for a class from which y~ is drawn, else 0; each as likely as another
    -          hyper["own_classes"]           1: only classes of which this client has photos (FL-bench)
    alpha_t    generator/alpha                weights, which the server lowers from round to round
    beta_t     generator/beta

The generator is used in evaluation mode: the server folds its BatchNorm, with running statistics, into W1 and b1. The
target of the divergence is constant, also by the classifier. Without a generator all of its tensors are zeros, and so
is their part of the loss.

Deviation: the authors' generator has another size for each data set; here noise and hidden layer have 32, as in
FL-bench.
"""

import torch
from torch import Tensor
from torch.nn import functional

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import cross_entropy
from fedlens_export.objectives.objective import (
    LABEL_COUNTS,
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

NOISE = HIDDEN = 32
GENERATOR = Reference(
    "generator",
    table={
        "hidden.weight": lambda sizes: (HIDDEN, NOISE + sizes.classes),
        "hidden.bias": lambda sizes: (HIDDEN,),
        "output.weight": lambda sizes: (sizes.features, HIDDEN),
        "output.bias": lambda sizes: (sizes.features,),
        "classes": lambda sizes: (sizes.classes,),
        "alpha": lambda sizes: (),
        "beta": lambda sizes: (),
    },
    optional=True,
)


def generate(generator: Tensors, noise: Tensor, classes: Tensor) -> Tensor:
    """Features [N, d] from noise [N, NOISE] and one-hot classes [N, C]."""
    given = torch.cat([noise, classes], 1)
    hidden = functional.linear(given, generator["hidden.weight"], generator["hidden.bias"]).relu()
    return functional.linear(hidden, generator["output.weight"], generator["output.bias"])


def draw(uniforms: Tensor, available: Tensor) -> Tensor:
    """One-hot classes [N, C], evenly from the available ones, 1 in float32 [C]; zeros if there is none.

    `uniforms` is [N] in 0..1.
    """
    number = torch.arange(available.shape[0])
    is_up_to = number.unsqueeze(1) - number.unsqueeze(0) >= 0
    # The number of available classes up to each one.
    up_to = torch.where(is_up_to, available, 0.0).sum(1)
    count = available.sum()
    place = torch.minimum(torch.floor(uniforms * count), count - 1)
    return available * (up_to.unsqueeze(0) == place.unsqueeze(1) + 1).to(available.dtype)


def generated_loss(logits: Tensor, drawn: Tensor, mask: Tensor) -> Tensor:
    """The mean cross-entropy of generated rows [N, C] by their one-hot classes, over the rows where `mask` is 1."""
    return masked_mean(-(drawn * functional.log_softmax(logits, 1)).sum(1), mask)


def divergence(target: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """The mean of `KL(softmax(target) || softmax(logits))` over the rows where `mask` is 1."""
    wanted, found = functional.log_softmax(target, 1), functional.log_softmax(logits, 1)
    return masked_mean((torch.exp(wanted) * (wanted - found)).sum(1), mask)


def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars) -> Outcome:
    """The three terms and their gradients."""
    assert batch.uniforms is not None
    inputs = without_padding(batch.inputs, batch.mask)
    generator, counts = references[GENERATOR.name], references[LABEL_COUNTS.name][LABEL_COUNTS.name]
    available = torch.where(hyper["own_classes"] > 0, torch.where(counts > 0, 1.0, 0.0), 1.0) * generator["classes"]
    drawn = draw(batch.uniforms[:, 2 * NOISE], available)
    features = generate(generator, batch.uniforms[:, :NOISE], drawn)
    own = one_hot(batch.labels, available.shape[0], features)
    target = forward.classify(weights, generate(generator, batch.uniforms[:, NOISE : 2 * NOISE], own))

    def loss(trained: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
        logits, buffers = forward(trained, inputs)
        value = cross_entropy.mean(logits, batch.labels, batch.mask)
        value = value + generator["alpha"] * generated_loss(forward.classify(trained, features), drawn, batch.mask)
        return value + generator["beta"] * divergence(target, logits, batch.mask), (logits, buffers)

    return minimised(loss, weights)


OBJECTIVE = Objective(
    name="generated",
    hyper=(Hyper("own_classes", 0.0, 0.0, 1.0),),
    references=(GENERATOR, LABEL_COUNTS),
    gradients=gradients,
    needs_features=True,
    uniforms=2 * NOISE + 1,
)
