"""A fleet's status, counted from its clients' events."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from fedlens_edge_client.client.events import (
    Embedded,
    Event,
    Retrying,
    RoundFailed,
    RoundRefused,
    RoundReported,
    RoundStarted,
    Trained,
    Waiting,
)
from fedlens_edge_client.client.waiting import described
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR, ClientEnded, Happened, Message, client_name

RoundId = tuple[int, int]  # task, round
KEPT_ROUNDS = 3
"""The newest two may change, and the one before them is printed: a fleet may run for months."""
KEPT_TROUBLES = 10


@dataclass
class RoundStatus:
    """A round's trainers."""

    started: set[int] = field(default_factory=set[int])
    reported: set[int] = field(default_factory=set[int])
    losses: dict[int, float] = field(default_factory=dict[int, float])

    @property
    def mean_loss(self) -> float | None:
        """The mean over clients of their mean losses, independent of their order; None before training."""
        return fmean(self.losses.values()) if self.losses else None

    @property
    def is_over(self) -> bool:
        """True if all trainers that started have reported."""
        return self.reported >= self.started


@dataclass
class FleetStatus:
    """A fleet.

    Attributes:
        name: Gives a client's name for people.
        rounds: The newest rounds by task and number, in the order in which their first clients started.
        seen: All rounds.
        activity: Each worker's last activity, for people.
        idle: For each client its last event if that was waiting or retrying, else None.
        failures: Reasons of clients that failed.
        trouble: Lines for the first refused or abandoned updates.
        troubles: The number of all these updates.
        late: Updates that came after the end of their rounds, which ask more clients than they want.
    """

    name: Callable[[int], str] = client_name
    rounds: dict[RoundId, RoundStatus] = field(default_factory=dict[RoundId, RoundStatus])
    seen: set[RoundId] = field(default_factory=set[RoundId])
    activity: dict[int, str] = field(default_factory=dict[int, str])
    idle: dict[int, Waiting | Retrying | None] = field(default_factory=dict[int, Waiting | Retrying | None])
    failures: dict[int, str] = field(default_factory=dict[int, str])
    trouble: list[str] = field(default_factory=list[str])
    troubles: int = 0
    reports: int = 0
    evaluations: int = 0
    late: int = 0
    bytes_uploaded: int = 0

    def count(self, message: Message) -> None:
        """Count one message."""
        if isinstance(message, ClientEnded):
            self.idle.pop(message.index, None)
            if message.failure is not None:
                self.failures[message.index] = message.failure
        elif isinstance(message, Happened):
            self._count_event(message)
            if words := _activity(self.name(message.index), message.event):
                self.activity[message.worker] = words
        else:
            self.activity[message.worker] = "finished"

    @property
    def wait(self) -> tuple[str, bool] | None:
        """The reason for which most clients wait, and whether it holds until the next event; None if a client works.

        After a retry, the reason holds only until the retry's result.
        """
        events = [event for event in self.idle.values() if event is not None]
        if not events or len(events) < len(self.idle):
            return None
        reasons = Counter(
            (f"waiting: {described(event)}", True)
            if isinstance(event, Waiting)
            else (f"{event.reason}; trying again", False)
            for event in events
        )
        return reasons.most_common(1)[0][0]

    @property
    def waits_in_vain(self) -> bool:
        """True if a client has failed before the first round, and another waits until enough clients have enrolled."""
        if not self.failures or self.rounds:
            return False
        return any(isinstance(event, Waiting) and event.reason == "population" for event in self.idle.values())

    def _count_event(self, message: Happened) -> None:
        index, event = message.index, message.event
        self.idle[index] = event if isinstance(event, Waiting | Retrying) else None
        match event:
            case RoundStarted() if index != EVALUATOR:
                self._round(event.task, event.round_number).started.add(index)
            case Trained():
                self._round(event.task, event.round_number).losses[index] = event.mean_loss
            case RoundReported() if index == EVALUATOR:
                self.evaluations += 1
            case RoundReported():
                found = self._round(event.task, event.round_number)
                found.started.add(index)  # in an earlier run, if the update was in the outbox
                found.reported.add(index)
                self.reports += 1
                self.bytes_uploaded += event.upload_bytes
            case RoundRefused(code="round-closed") if index == EVALUATOR:
                pass  # rounds do not wait for an evaluator; a newer model exists
            case RoundRefused(code="round-closed"):
                self.late += 1
            case RoundRefused():
                self._note(f"round {event.round_number}, {self.name(index)}: {event.code}: {event.message}")
            case RoundFailed():
                self._note(f"round {event.round_number}, {self.name(index)}: {event.reason}: {event.detail}")

    def _note(self, trouble: str) -> None:
        self.troubles += 1
        if len(self.trouble) < KEPT_TROUBLES:
            self.trouble.append(trouble)

    def _round(self, task: int, number: int) -> RoundStatus:
        key = (task, number)
        if key in self.seen:
            return self.rounds.get(key) or RoundStatus()  # what comes so late changes nothing that is still shown
        self.seen.add(key)
        if len(self.rounds) == KEPT_ROUNDS:
            del self.rounds[next(iter(self.rounds))]
        return self.rounds.setdefault(key, RoundStatus())


def _activity(name: str, event: Event) -> str | None:
    """A worker's activity after an event of a client; None if the event does not change it."""
    match event:
        case Embedded():
            return f"{name}: {event.done} of {event.total} photos read"
        case RoundStarted():
            photos = event.train_photos or event.test_photos
            return f"{name}: round {event.round_number}, {photos} photos"
        case RoundReported():
            return f"{name}: round {event.round_number} reported"
        case Retrying():
            return f"{name}: {event.reason}; again in {event.delay_s:.1f} s"
        case Waiting():
            return f"waiting: {described(event)}"
        case _:
            return None
