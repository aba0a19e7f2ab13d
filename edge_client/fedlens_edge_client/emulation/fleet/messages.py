"""Messages from workers to the parent process, which are pickled."""

from dataclasses import dataclass

from fedlens_edge_client.client.events import Event

EVALUATOR = -1  # the evaluator's index


def client_name(index: int) -> str:
    """A client's name for people; clients count from 0, as on the command line and in fault plans."""
    return "evaluator" if index == EVALUATOR else f"client {index}"


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of a client; of its training steps only the last is sent."""

    worker: int
    index: int
    event: Event


@dataclass(frozen=True, slots=True)
class ClientEnded:
    """A client has ended; `failure` is its reason, or None after the end of all tasks or a stop."""

    worker: int
    index: int
    failure: str | None


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker's last message."""

    worker: int


Message = Happened | ClientEnded | WorkerEnded
