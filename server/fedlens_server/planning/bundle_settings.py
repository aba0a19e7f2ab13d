"""The settings with which a bundle for a method is exported, beside its model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class BundleSettings:
    """The settings of `fedlens export` that a method needs.

    Attributes:
        objective: Name of the objective.
        candidates: Number of models that clients compare and blend; 0: none.
        programs: Further programs, besides the objective's own.
        public: True if clients run programs over public photos.
    """

    objective: str = "cross_entropy"
    candidates: int = 0
    programs: tuple[str, ...] = ()
    public: bool = False


ByOptions = Callable[[Mapping[str, Any]], BundleSettings]
"""The settings by the options of a task, each with its value or default."""


def always(objective: str, *, public: bool = False) -> ByOptions:
    """The same settings for all options."""
    return lambda options: BundleSettings(objective=objective, public=public)


def comparing(option: str, objective: str = "cross_entropy", *, default: int = 5) -> ByOptions:
    """Settings with as many candidates as an option says; `default` where it says no number."""

    def settings(options: Mapping[str, Any]) -> BundleSettings:
        wanted = options[option]
        return BundleSettings(objective=objective, candidates=wanted if isinstance(wanted, int) else default)

    return settings
