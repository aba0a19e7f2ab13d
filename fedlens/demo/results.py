"""A finished task as plain values for tables and figures, read from one response of the admin API."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fedlens.reports.task_report import round_values
from fedlens_proto.v1 import admin_pb2 as pb


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Correctly classified test photos out of `count`."""

    correct: int
    count: int

    @property
    def ratio(self) -> float:
        """From 0 to 1."""
        return self.correct / self.count


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """One committed round.

    Attributes:
        number: From 1.
        model: The committed model on evaluators' photos; None if no evaluator has evaluated it.
        before: The downloaded model on the members' own test photos.
        after: Each member's trained model on its own test photos.
        bytes_up: Size of all updates' bodies.
        bytes_down: Size of all parts and blobs that clients downloaded.
        seconds: Time from opening to commit.
        left_out: A line for each member without a used update.
    """

    number: int
    model: Accuracy | None
    before: Accuracy | None
    after: Accuracy | None
    bytes_up: int
    bytes_down: int
    seconds: float
    members: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """A client in the last round that evaluated it."""

    name: str
    round_number: int
    before: Accuracy
    after: Accuracy


@dataclass(frozen=True)
class TaskFacts:
    """A whole task.

    Attributes:
        rounds: Committed rounds, ascending.
        abandoned: A line for each abandoned round.
        clients: Clients in the order of `names`.
        settings: The task's settings, with the server's defaults.
    """

    rounds: tuple[RoundFacts, ...]
    abandoned: tuple[str, ...]
    clients: tuple[ClientFacts, ...]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, response: pb.ShowTaskResponse, names: Mapping[bytes, str]) -> Self:
        """Read a response of the admin API.

        Args:
            response: A task and its rounds.
            names: Clients' names by id, in the wanted order. A client without one is named by the start of its id and
                comes behind the others.
        """
        committed = [r for r in response.rounds if r.state == pb.ROUND_STATE_COMMITTED]
        abandoned = [r for r in response.rounds if r.state == pb.ROUND_STATE_ABANDONED]
        latest: dict[bytes, ClientFacts] = {}
        for result in committed:
            for member, values in zip(result.members, round_values(result)["members"], strict=True):
                before, after = (_accuracy(values["evaluations"].get(key)) for key in ("before", "after"))
                if before and after:
                    name = _name(names, member.client_id)
                    latest[member.client_id] = ClientFacts(name, result.round, before, after)
        order = {client: place for place, client in enumerate(names)}
        return cls(
            rounds=tuple(_round(result, names) for result in committed),
            abandoned=tuple(f"round {r.round}: {r.reason}" for r in abandoned),
            clients=tuple(latest[c] for c in sorted(latest, key=lambda c: (order.get(c, len(order)), c))),
            settings=json.loads(response.task.settings_json or "{}"),
        )

    @property
    def measured(self) -> tuple[tuple[int, float], ...]:
        """Round and accuracy of every evaluated global model."""
        return tuple((r.number, r.model.ratio) for r in self.rounds if r.model)


def _round(result: pb.RoundResult, names: Mapping[bytes, str]) -> RoundFacts:
    values = round_values(result)
    before, after = values["personal"]["before"], values["personal"]["after"]
    return RoundFacts(
        number=result.round,
        model=_accuracy(values["global"]),
        before=_accuracy(before and before["pooled"]),
        after=_accuracy(after and after["pooled"]),
        bytes_up=values["bytes_received"],
        bytes_down=result.bytes_sent,
        seconds=result.ended_at - result.opened_at,
        members=len(result.members),
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


def _accuracy(sums: Mapping[str, Any] | None) -> Accuracy | None:
    return None if sums is None else Accuracy(sums["correct"], sums["count"])


def _name(names: Mapping[bytes, str], client: bytes) -> str:
    return names.get(client) or f"client {client.hex()[:8]}"
