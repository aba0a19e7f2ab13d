"""What a client tells its embedder: plain values, in the order in which things happen.

`on_event` is called on the event loop's thread; it must return quickly and raise nothing. `Embedded` and `Trained` come
at most ten times a second, and for the last photo and step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedlens_edge_client.training.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The server knows this client now."""

    client_id: bytes
    role: str  # trainer | evaluator


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is no work now."""

    reason: str  # population | next_round | phase | no_task | superseded | busy | stopping
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class Retrying:
    """A request did not succeed and is sent again."""

    reason: str
    delay_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """An assignment is carried out, with these photos."""

    task: int
    round_number: int
    train_photos: int
    test_photos: int


@dataclass(frozen=True, slots=True)
class PhotosSkipped:
    """Photos that this round does without, by reason."""

    skipped: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A part or a blob has been fetched and has the right digest."""

    sha256: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Embedded:
    """Photos that were decoded (and, with a frozen backbone, embedded) for the first time."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Trained:
    """One more step of training."""

    task: int
    round_number: int
    step: int
    steps: int
    loss: float
    mean_loss: float  # of all steps of the round until this one


@dataclass(frozen=True, slots=True)
class RoundReported:
    """The server has the result on its disk."""

    task: int
    round_number: int
    num_examples: int
    upload_bytes: int  # of the request's body
    start: Evaluation | None
    end: Evaluation | None
    fine_tuning: Evaluation | None = None  # after stages that were thrown away


@dataclass(frozen=True, slots=True)
class RoundFailed:
    """The assignment was given up and the server told why."""

    task: int
    round_number: int
    reason: str  # no_photos | bundle | unsupported | policy | non_finite | internal
    detail: str
    advice: str = ""  # where it will end so in every round: what to do; the server is not told


@dataclass(frozen=True, slots=True)
class RoundRefused:
    """The server does not take the result; it is dropped."""

    task: int
    round_number: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class TasksFinished:
    """There will be no work any more."""


Event = (
    Enrolled
    | Waiting
    | Retrying
    | RoundStarted
    | PhotosSkipped
    | Downloaded
    | Embedded
    | Trained
    | RoundReported
    | RoundFailed
    | RoundRefused
    | TasksFinished
)
