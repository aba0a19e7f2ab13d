"""What workers tell the process that started them; everything is plain and pickled."""

from dataclasses import dataclass

from fedlens_edge_client.client.events import Event

EVALUATOR = -1  # stands for an index where the evaluator is meant


def client_name(index: int) -> str:
    """What people read: clients count from 0, as on the command line and in fault plans."""
    return "evaluator" if index == EVALUATOR else f"client {index}"


@dataclass(frozen=True, slots=True)
class Happened:
    """One of a client's events; of its training steps only the last."""

    worker: int
    index: int
    event: Event


@dataclass(frozen=True, slots=True)
class ClientEnded:
    """A client will do nothing more; `failure` says why if that is not because all tasks have ended, or a stop."""

    worker: int
    index: int
    failure: str | None


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The last message of a worker that ends by itself."""

    worker: int


Message = Happened | ClientEnded | WorkerEnded
