"""What a finished task says about itself, as plain values for tables and figures.

Everything comes from one answer of the admin API; nothing is measured here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fedlens_proto.v1 import admin_pb2 as pb
from fedlens_proto.v1 import update_pb2


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Right answers out of `count` test photos."""

    correct: int
    count: int

    @property
    def share(self) -> float:
        """0 to 1."""
        return self.correct / self.count


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """One committed round.

    Attributes:
        number: From 1.
        model: Of the committed model, by evaluators; None where none has evaluated it.
        before: Over all members, each on its own test photos, of the model they downloaded.
        after: The same, of what each has trained.
        bytes_up: Bodies of updates, from clients.
        bytes_down: Of parts and blobs, to clients.
        seconds: From opening to commit.
        left_out: For each member that was quarantined or failed, what happened.
    """

    number: int
    model: Accuracy | None
    before: Accuracy | None
    after: Accuracy | None
    bytes_up: int
    bytes_down: int
    seconds: float
    members: int
    photos: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """One client in the last round in which it was tested."""

    name: str
    round_number: int
    photos: int
    before: Accuracy
    after: Accuracy


@dataclass(frozen=True)
class TaskFacts:
    """A whole task.

    Attributes:
        rounds: Those that committed, ascending.
        abandoned: For each round that did not, number and reason.
        clients: In the order of their names' numbers.
        settings: As the server filled them in.
    """

    name: str
    rounds: tuple[RoundFacts, ...]
    abandoned: tuple[str, ...]
    clients: tuple[ClientFacts, ...]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, answer: pb.ShowTaskResponse, names: Mapping[bytes, str]) -> Self:
        """Read the admin API's answer; `names` says what to call which client, in the order wanted.

        A client without a name is called by the start of its id and stands behind the others.
        """
        committed = [r for r in answer.rounds if r.state == pb.ROUND_STATE_COMMITTED]
        abandoned = [r for r in answer.rounds if r.state == pb.ROUND_STATE_ABANDONED]
        latest: dict[bytes, ClientFacts] = {}
        for result in committed:
            for member in result.members:
                before, after = _both_moments([member])
                if before and after:
                    name = _name(names, member.client_id)
                    latest[member.client_id] = ClientFacts(name, result.round, member.num_examples, before, after)
        order = {client: place for place, client in enumerate(names)}
        return cls(
            name=answer.task.name,
            rounds=tuple(_round(result, names) for result in committed),
            abandoned=tuple(f"round {r.round}: {r.reason}" for r in abandoned),
            clients=tuple(latest[c] for c in sorted(latest, key=lambda c: (order.get(c, len(order)), c))),
            settings=json.loads(answer.task.settings_json or "{}"),
        )

    @property
    def measured(self) -> tuple[tuple[int, float], ...]:
        """Round and accuracy of every global model that was evaluated."""
        return tuple((r.number, r.model.share) for r in self.rounds if r.model)


def _round(result: pb.RoundResult, names: Mapping[bytes, str]) -> RoundFacts:
    before, after = _both_moments(result.members)
    return RoundFacts(
        number=result.round,
        model=_sum(getattr(result, "global")),
        before=before,
        after=after,
        bytes_up=sum(member.bytes_received for member in result.members),
        bytes_down=result.bytes_sent,
        seconds=result.ended_at - result.opened_at,
        members=len(result.members),
        photos=sum(member.num_examples for member in result.members),
        left_out=tuple(
            f"round {result.round}, {_name(names, member.client_id)}: {_STATES[member.state]} ({member.reason})"
            for member in result.members
            if member.state in _STATES
        ),
    )


_STATES = {
    pb.MEMBER_STATE_FAILED: "gave up",
    pb.MEMBER_STATE_QUARANTINED: "update not used",
    pb.MEMBER_STATE_LEFT: "left the federation",
    pb.MEMBER_STATE_PENDING: "did not report in time",
}


def _both_moments(members: Any) -> tuple[Accuracy | None, Accuracy | None]:
    sums = [entry for member in members for entry in member.evaluations]
    return (
        _sum(entry for entry in sums if entry.moment == update_pb2.EVALUATION_MOMENT_START),
        _sum(entry for entry in sums if entry.moment == update_pb2.EVALUATION_MOMENT_END),
    )


def _sum(entries: Any) -> Accuracy | None:
    listed = [entry for entry in entries if entry.count]
    if not listed:
        return None
    return Accuracy(sum(entry.correct for entry in listed), sum(entry.count for entry in listed))


def _name(names: Mapping[bytes, str], client: bytes) -> str:
    return names.get(client) or f"client {client.hex()[:8]}"
