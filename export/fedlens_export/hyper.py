"""Hyper-parameters: scalars that a local plan can set, with default and range."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedlens_proto.v1 import manifest_pb2 as pb

ROLES = ("extractor", "classifier")
MAX_LEARNING_RATE = 100.0

Scalars = Mapping[str, Tensor]
"""Hyper-parameters of a step, by name."""


@dataclass(frozen=True)
class Hyper:
    """A scalar of a step; `minimum` and `maximum` are allowed values."""

    name: str
    default: float
    minimum: float
    maximum: float

    def __post_init__(self) -> None:
        """Require that the default is within its range."""
        if not self.minimum <= self.default <= self.maximum:
            range_ = f"{self.minimum:g} to {self.maximum:g}"
            raise ValueError(f"default {self.default:g} of hyper-parameter {self.name!r} must be from {range_}")

    def message(self) -> pb.HyperParameter:
        """The hyper-parameter for a manifest."""
        return pb.HyperParameter(name=self.name, default_value=self.default, minimum=self.minimum, maximum=self.maximum)


def learning_rates(default: float) -> tuple[Hyper, ...]:
    """A learning rate for each role; 0 freezes the role."""
    return tuple(Hyper(f"lr_{role}", default, 0.0, MAX_LEARNING_RATE) for role in ROLES)
