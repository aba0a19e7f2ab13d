"""What a local step minimises; one file an objective. A new one adds a line to `OBJECTIVES`."""

from fedlens_export.errors import UnknownChoice
from fedlens_export.objectives import classifier_proximal, cross_entropy, proximal, supcon
from fedlens_export.objectives.objective import Objective

OBJECTIVES = {
    objective.name: objective
    for objective in (
        cross_entropy.OBJECTIVE,
        proximal.OBJECTIVE,
        classifier_proximal.OBJECTIVE,
        supcon.NORMALISED,
        supcon.RAW,
    )
}


def by_name(name: str) -> Objective:
    """An objective.

    Raises:
        UnknownChoice: There is none of that name.
    """
    if name not in OBJECTIVES:
        raise UnknownChoice(f"objective {name!r} is unknown; there are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]
