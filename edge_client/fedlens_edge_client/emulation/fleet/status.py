"""What a fleet has done so far, counted from its clients' events."""

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
from fedlens_edge_client.client.waiting import REASONS
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR, ClientEnded, Happened, Message, client_name

RoundId = tuple[int, int]  # task, round


@dataclass
class RoundStatus:
    """One round, as its trainers see it."""

    started: set[int] = field(default_factory=set[int])
    reported: set[int] = field(default_factory=set[int])
    losses: dict[int, float] = field(default_factory=dict[int, float])

    @property
    def mean_loss(self) -> float | None:
        """Over the clients that have trained, each the mean over its steps; None before.

        The same in whatever order clients were heard.
        """
        return fmean(self.losses.values()) if self.losses else None

    @property
    def is_over(self) -> bool:
        """Whether everyone who started has reported."""
        return self.reported >= self.started


@dataclass
class FleetStatus:
    """A whole fleet.

    Attributes:
        name: What people call a client, by its index.
        rounds: By task and round, in the order in which the first client started them.
        doing: For each worker what it was last heard of.
        idle: For each client that was last heard to wait, or to send a request again, that event; None: it works.
        failures: By client, why it ended.
        trouble: Updates that were refused or given up, in words, in order.
    """

    name: Callable[[int], str] = client_name
    rounds: dict[RoundId, RoundStatus] = field(default_factory=dict[RoundId, RoundStatus])
    doing: dict[int, str] = field(default_factory=dict[int, str])
    idle: dict[int, Waiting | Retrying | None] = field(default_factory=dict[int, Waiting | Retrying | None])
    failures: dict[int, str] = field(default_factory=dict[int, str])
    trouble: list[str] = field(default_factory=list[str])
    reports: int = 0
    evaluations: int = 0
    bytes_uploaded: int = 0
    ended: int = 0

    def hear(self, message: Message) -> None:
        """Count one message."""
        if isinstance(message, ClientEnded):
            self.ended += 1
            self.idle.pop(message.index, None)
            if message.failure is not None:
                self.failures[message.index] = message.failure
        elif isinstance(message, Happened):
            self._count(message)
            if words := _words(self.name(message.index), message.event):
                self.doing[message.worker] = words
        else:
            self.doing[message.worker] = "finished"

    @property
    def wait(self) -> tuple[str, bool] | None:
        """Why most clients wait, and whether that lasts until one is heard again; None: somebody works.

        Of a request that is sent again nothing is known until it has failed again.
        """
        events = [event for event in self.idle.values() if event is not None]
        if not events or len(events) < len(self.idle):
            return None
        reasons = Counter(
            (f"waiting: {REASONS.get(event.reason, event.reason)}", True)
            if isinstance(event, Waiting)
            else (f"{event.reason}; trying again", False)
            for event in events
        )
        return reasons.most_common(1)[0][0]

    def _count(self, message: Happened) -> None:
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
                self._round(event.task, event.round_number).reported.add(index)
                self.reports += 1
                self.bytes_uploaded += event.upload_bytes
            case RoundRefused(code="round-closed") if index == EVALUATOR:
                pass  # a newer model is there by now: rounds do not wait for an evaluator
            case RoundRefused():
                self.trouble.append(f"round {event.round_number}, {self.name(index)}: {event.code}: {event.message}")
            case RoundFailed():
                self.trouble.append(f"round {event.round_number}, {self.name(index)}: {event.reason}: {event.detail}")
            case _:
                pass

    def _round(self, task: int, number: int) -> RoundStatus:
        return self.rounds.setdefault((task, number), RoundStatus())


def _words(name: str, event: Event) -> str | None:
    """What a worker is doing, if this event of the client of that name says so."""
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
            return f"waiting: {REASONS.get(event.reason, event.reason)}"
        case _:
            return None
