"""Scalars that a local plan may set, with default and range."""

from dataclasses import dataclass

from fedlens_proto.v1 import manifest_pb2 as pb

ROLES = ("extractor", "classifier")
MAX_LEARNING_RATE = 100.0


@dataclass(frozen=True)
class Hyper:
    """One scalar of a step; `minimum` and `maximum` are allowed values."""

    name: str
    default: float
    minimum: float
    maximum: float

    def message(self) -> pb.HyperParameter:
        """As in a manifest."""
        return pb.HyperParameter(name=self.name, default_value=self.default, minimum=self.minimum, maximum=self.maximum)


def learning_rates(default: float) -> tuple[Hyper, ...]:
    """One learning rate a role; 0 freezes it."""
    return tuple(Hyper(f"lr_{role}", default, 0.0, MAX_LEARNING_RATE) for role in ROLES)
