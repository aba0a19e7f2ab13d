"""Losses that a local step minimises, one file an objective; a new one adds a line to `OBJECTIVES`.

It may import `network`, `hyper`, `choices` and `errors`. Begin with `objective.py`.
"""

from fedlens_export.choices import chosen
from fedlens_export.objectives import (
    calibrated_logits,
    classifier_proximal,
    cross_entropy,
    distil,
    dynamic,
    generated,
    meta,
    moon,
    prototypes,
    proximal,
    restricted_softmax,
    supcon,
)
from fedlens_export.objectives.objective import Objective

OBJECTIVES = {
    objective.name: objective
    for objective in (
        cross_entropy.OBJECTIVE,
        proximal.OBJECTIVE,
        classifier_proximal.OBJECTIVE,
        supcon.NORMALISED,
        supcon.RAW,
        dynamic.OBJECTIVE,
        moon.OBJECTIVE,
        restricted_softmax.OBJECTIVE,
        calibrated_logits.OBJECTIVE,
        meta.FIRST_ORDER,
        meta.EXACT,
        prototypes.OBJECTIVE,
        distil.DIVERGENCE,
        distil.PROBABILITIES,
        distil.SCORES,
        distil.SCORES_SQUARED,
        generated.OBJECTIVE,
    )
}


def by_name(name: str) -> Objective:
    """An objective: ours, of an installed package, or `module:NAME`, whose module is imported.

    Raises:
        UnknownChoice: There is no objective of that name, or its package is missing or faulty.
    """
    return chosen("objective", name, Objective, OBJECTIVES)
