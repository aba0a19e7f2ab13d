"""FedClassAvg's pull on the classifier: cross-entropy plus a distance to the broadcast classifier.

Paper: Jang et al., ICPP 2022, arXiv:2210.16748, Equation 5: `rho * ||w_Ck - w_C||_2`, the norm not squared.

    paper         here                    meaning
    w_C           references["global"]    the broadcast classifier, weight and bias
    rho           hyper["rho"]            strength of the norm; 0 turns it off
    mu (code)     hyper["mu_mean"]        strength of the authors' code's form; 0 turns it off

The authors' code has another form: `mu/2 * (mean of squared weight differences + the same for the bias)`. The code
leaves it out in the first batch of a round, in which both forms are 0 for a classifier that starts from `w_C`.
The norm has no gradient at distance 0; here the gradient is 0 there.
"""

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives import cross_entropy, proximal
from fedlens_export.objectives.objective import Batch, Forward, Objective, Outcome, Reference

HYPER = (Hyper("rho", 0.1, 0.0, 1000.0), Hyper("mu_mean", 0.0, 0.0, 1000.0))
CLASSIFIER = Reference(proximal.REFERENCE, roles=("classifier",))


def pulled(outcome: Outcome, weights: Tensors, references: References, hyper: Scalars) -> Outcome:
    """Add both forms of the pull, as far as `hyper` turns them on, to loss and gradients."""
    difference = proximal.differences(weights, references[CLASSIFIER.name])
    return proximal.pulled(
        outcome,
        difference,
        proximal.distance(difference, hyper["rho"]),
        proximal.mean_squared(difference, hyper["mu_mean"]),
    )


def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars) -> Outcome:
    """Cross-entropy with the pull on the classifier, in gradients and loss."""
    outcome = cross_entropy.gradients(forward, weights, batch, references, hyper)
    return pulled(outcome, weights, references, hyper)


OBJECTIVE = Objective(name="classifier_proximal", hyper=HYPER, references=(CLASSIFIER,), gradients=gradients)
