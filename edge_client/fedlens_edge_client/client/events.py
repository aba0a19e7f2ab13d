"""Events that a client reports to its embedder: frozen values, in the order in which things happen.

`on_event` is called on the event loop's thread; it must return quickly and raise nothing. `Embedded` and `Trained` are
emitted at most ten times a second, and for the last photo and step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedlens_edge_client.training.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events."""


@dataclass(frozen=True, slots=True)
class Enrolled(Event):
    """The server has enrolled this client."""

    client_id: bytes
    role: str  # trainer | evaluator


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """There is no work now."""

    reason: str  # a key of `waiting.REASONS`
    retry_after_ms: int
    detail: str = ""  # the server's text beside the reason


@dataclass(frozen=True, slots=True)
class Retrying(Event):
    """A request has failed and will be sent again."""

    reason: str
    delay_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class RoundEvent(Event):
    """The base of events that belong to one round."""

    task: int
    round_number: int


@dataclass(frozen=True, slots=True)
class RoundStarted(RoundEvent):
    """An assignment has been started with this number of photos."""

    train_photos: int
    test_photos: int


@dataclass(frozen=True, slots=True)
class PhotosSkipped(Event):
    """File names that this round leaves out, by reason."""

    skipped: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Downloaded(Event):
    """A part or a blob has been fetched and has the right digest."""

    sha256: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Embedded(Event):
    """Photos have been decoded (and, with a frozen backbone, embedded) for the first time."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Trained(RoundEvent):
    """A training step has ended."""

    step: int
    steps: int
    loss: float
    mean_loss: float  # over all steps of the round so far


@dataclass(frozen=True, slots=True)
class RoundReported(RoundEvent):
    """The server has the result on its disk."""

    num_examples: int
    upload_bytes: int  # of the request's body
    evaluations: Mapping[str, Evaluation]  # by label, in the local plan's order


@dataclass(frozen=True, slots=True)
class RoundFailed(RoundEvent):
    """The client has given the assignment up and told the server the reason."""

    reason: str  # no_photos | bundle | unsupported | policy | non_finite | internal
    detail: str
    advice: str = ""  # the cure, if every round would end like this; not sent to the server


@dataclass(frozen=True, slots=True)
class RoundRefused(RoundEvent):
    """The server has refused the result; it is dropped."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class TasksFinished(Event):
    """Every task has ended; there will be no more work."""
