"""FedDyn: cross-entropy with a linear term and a pull, so that local minima agree; with alpha 0, SCAFFOLD's correction.

Papers: Acar et al., ICLR 2021, arXiv:2111.04263, Algorithm 1: `L_k(theta) - <g_k, theta> + alpha/2 |theta - w|^2`;
Karimireddy et al., ICML 2020, arXiv:1910.06378, Algorithm 1: steps along `g - c_k + c`.

    paper          here                    meaning
    w              references["global"]    the model that the round started from
    g_k            references["dual"]      the client's dual; zeros if it is not bound
    alpha          hyper["alpha"]          strength of the pull
    c_k, c         dual = c_k - c          SCAFFOLD's control variates, with alpha 0

Both terms are added to the gradient explicitly: `alpha (theta - w) - g_k`. They cover the trained weights, and so no
BatchNorm statistics.

Deviation: the authors' code scales alpha by the client's number of photos and clips gradients; the paper does neither.
"""

from torch import Tensor

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import cross_entropy, proximal
from fedlens_export.objectives.objective import Batch, Forward, Objective, Outcome, Reference

DUAL = "dual"
ALPHA = Hyper("alpha", 0.01, 0.0, 1000.0)


def corrected(outcome: Outcome, weights: Tensors, references: References, alpha: Tensor) -> Outcome:
    """Add the pull and the linear term to loss and gradients."""
    difference = proximal.differences(weights, references[proximal.REFERENCE])
    outcome = proximal.pulled(outcome, difference, proximal.squared(difference, alpha))
    dual = references[DUAL]
    found = {name: outcome.gradients[name] - tensor for name, tensor in dual.items()}
    return Outcome(found, outcome.loss - proximal.inner(dual, weights), outcome.logits, outcome.buffers)


def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars) -> Outcome:
    """Cross-entropy with both terms, in gradients and loss."""
    outcome = cross_entropy.gradients(forward, weights, batch, references, hyper)
    return corrected(outcome, weights, references, hyper[ALPHA.name])


OBJECTIVE = Objective(
    name="dynamic",
    hyper=(ALPHA,),
    references=(Reference(proximal.REFERENCE), Reference(DUAL, optional=True)),
    gradients=gradients,
    programs=("dual_update",),
)
