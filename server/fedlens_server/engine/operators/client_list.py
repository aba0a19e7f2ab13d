"""Enrolled clients for operators: by pages, filtered, and one with all that is known of it; reads the database."""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Any

from sqlalchemy import Row, Select, func, select

from fedlens_proto.v1 import admission_pb2
from fedlens_server.engine.arrivals.answers import Answer
from fedlens_server.engine.task import ENDED, Task
from fedlens_server.engine.view import Federation
from fedlens_server.errors import Malformed, Unknown
from fedlens_server.store import schema

MAX_LISTED = 1_000
STATES = {
    "active": admission_pb2.CLIENT_STATE_ACTIVE,
    "banned": admission_pb2.CLIENT_STATE_BANNED,
    "sits-out": admission_pb2.CLIENT_STATE_SITS_OUT,
}
SittingOut = defaultdict[bytes, list[tuple[Task, float]]]
"""By client the tasks that go on and that it sits out of, each with the time until which it does."""
_columns, _past = schema.clients.c, schema.participants.c
_going = select(schema.tasks.c.id).where(schema.tasks.c.state.not_in(ENDED))
_SITS_OUT = (
    select(func.max(_past.sits_out_until)).where(_past.client == _columns.id, _past.task.in_(_going)).scalar_subquery()
)


def listed(
    federation: Federation,
    after: bytes = b"",
    limit: int = MAX_LISTED,
    *,
    token: str = "",
    bundle: str = "",
    state: str = "",
    seen_within_s: float | None = None,
) -> admission_pb2.ListClientsResponse:
    """Some clients, ascending by id.

    Args:
        federation: The clients.
        after: Only those with a greater id.
        limit: The most clients.
        token: Only those that enrolled with a token of this name.
        bundle: Only those that run a bundle of a task: a model's name, or the first digits of a bundle's id.
        state: Only those in a state, one of `STATES`.
        seen_within_s: Only those that were seen in the last seconds.

    Raises:
        Malformed: There is no such state.
        Unknown: No task has such a bundle.
    """
    if state and state not in STATES:
        raise Malformed(f"state: found {state[:80]!r}, must be one of {', '.join(STATES)}")
    query = _query().where(_columns.id > after).order_by(_columns.id)
    if token:
        query = query.where(_columns.token == token)
    tasks = list(federation.tasks.values())
    bundles = [each for task in tasks for each in task.bundles]
    wanted = [each for each in bundles if bundle in (each.manifest.model, each.id.hex()[: len(bundle)])]
    if bundle and not wanted:
        raise Unknown(f"no task has a bundle {bundle[:80]!r}")

    def fits(found: admission_pb2.EnrolledClient) -> bool:
        known = federation.clients.get(found.id)
        if known is None or (state and found.state != STATES[state]):
            return False
        if seen_within_s is not None and found.last_seen < federation.clock.now() - seen_within_s:
            return False
        return not bundle or any(each.runs_on(known.profile) for each in wanted)

    shown = (_shown(federation, row) for row in federation.store.stream(query))
    page = list(islice((each for each in shown if fits(each)), limit + 1))
    return admission_pb2.ListClientsResponse(clients=page[:limit], has_more=len(page) > limit)


def find(federation: Federation, digits: str) -> bytes:
    """The id of a client by its hexadecimal digits: all 64, or so many that no other enrolled client's id begins so.

    Raises:
        Malformed: They are no such digits, too few, or several ids begin with them.
        Unknown: No id begins with them.
    """
    if not re.fullmatch("[0-9a-fA-F]{8,64}", digits):
        allowed = "a client's id has 64 hexadecimal digits, of which 8 or more are needed"
        raise Malformed(f"{allowed}, found {digits[:80]!r}")
    first, last = (bytes.fromhex(digits.ljust(64, each)) for each in "0f")
    if first == last:
        return first
    found = federation.store.read(select(_columns.id).where(_columns.id.between(first, last)))
    if not found:
        raise Unknown(f"there is no client whose id begins with {digits}")
    if len(found) > 1:
        raise Malformed(f"the ids of {len(found)} clients begin with {digits}; give more digits")
    return bytes(found[0].id)


def show(federation: Federation, client: bytes) -> admission_pb2.ShowClientResponse:
    """All that is known of a client.

    Raises:
        Unknown: No such client.
    """
    rows, past = federation.store.read_together(
        _query().where(_columns.id == client), select(schema.participants).where(_past.client == client)
    )
    known = federation.clients.get(client)
    if not rows or known is None:
        raise Unknown(f"there is no client {client.hex()}")
    answer, answered_at = federation.answers.last(client) or (Answer("", 0), 0.0)
    parts = {row.task: row for row in past}
    return admission_pb2.ShowClientResponse(
        client=_shown(federation, rows[0]),
        capabilities=known.profile.capabilities,
        answer=answer.word,
        answer_task=answer.task,
        answer_detail=answer.detail,
        answered_at=answered_at,
        tasks=[
            admission_pb2.ClientInTask(
                task=task.id,
                name=task.name,
                suits=task.suits(known.profile),
                **({} if task.id not in parts else _part(parts[task.id])),
            )
            for task in sorted(federation.tasks.values(), key=lambda task: task.id)
        ],
    )


def sitting_out(federation: Federation, clients: Sequence[bytes]) -> SittingOut:
    """The tasks that some clients sit out of; reads the database."""
    now, found = federation.clock.now(), SittingOut(list)
    for row in federation.store.read_among(select(schema.participants), _past.client, clients):
        task = federation.tasks.get(row.task)
        if task is not None and not task.ended and now < row.sits_out_until:
            found[row.client].append((task, row.sits_out_until))
    return found


def _query() -> Select[*tuple[Any, ...]]:
    return select(
        *(_columns.id, _columns.role, _columns.token, _columns.enrolled_at, _columns.banned_at, _columns.ban_reason),
        _SITS_OUT.label("sits_out_until"),
    )


def _part(row: Row[Any]) -> dict[str, Any]:
    return {key: getattr(row, key) for key in ("last_round", "times", "misses", "quarantines", "sits_out_until")}


def _shown(federation: Federation, row: Row[Any]) -> admission_pb2.EnrolledClient:
    clock = federation.clock
    seen = federation.presence.last_seen(row.id)
    told = federation.answers.last(row.id)
    # Presence is known to the minute, after a restart to the hour.
    known = [row.enrolled_at] if told is None else [row.enrolled_at, told[1]]
    sits_out = row.sits_out_until is not None and clock.now() < row.sits_out_until
    state = "banned" if row.banned_at is not None else "sits-out" if sits_out else "active"
    return admission_pb2.EnrolledClient(
        id=row.id,
        role=row.role,
        token=row.token,
        enrolled_at=row.enrolled_at,
        last_seen=0.0 if seen is None else max(clock.now() - (clock.elapsed() - seen), *known),
        state=STATES[state],
        sits_out_until=row.sits_out_until if sits_out else 0.0,
        banned_at=row.banned_at or 0.0,
        ban_reason=row.ban_reason or "",
    )
