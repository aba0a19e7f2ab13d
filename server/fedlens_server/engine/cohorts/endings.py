"""Ends of rounds: what aggregation found, and what is written of it beside the new state."""

import json
from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import NamedTuple

from sqlalchemy import update

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine.arrivals import participation
from fedlens_server.engine.cohorts.members import EXCLUDE_MEMBER, Round
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.planning.method import State
from fedlens_server.rules.robust import Bounds
from fedlens_server.store import Transaction, method_state, schema
from fedlens_server.store.method_state import Key, PreparedState
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

MAX_COPIES = 3  # of a task's shared state
_rounds, _tasks = schema.rounds.c, schema.tasks.c


class Outcome(NamedTuple):
    """The outcome of a round's aggregation.

    Attributes:
        prepared: The new state; None: the round is abandoned.
        reason: Of that; empty where the round commits.
        excluded: By client the reason for which a rule left its update out.
        bounds: The median norms of the round, for its successor; None: no rule needs them.
    """

    prepared: PreparedState | None
    reason: str
    excluded: Mapping[bytes, str]
    bounds: Bounds | None = None


def write(federation: Federation, transaction: Transaction, task: Task, current: Round, reason: str) -> None:
    """Write that a round has ended: with a commit, or for this reason without one."""
    # Of no length as long as it waits for its first place.
    seconds = 0.0 if current.started is None else federation.clock.elapsed() - current.started
    if task.settings.by_arrival:
        participation.missed(transaction, task, current, federation.clock.elapsed())
        if current.report_s:
            mean_s = fmean(current.report_s)
            transaction.after_commit(lambda: task.report_s.append(mean_s))
    state = admin_pb2.ROUND_STATE_ABANDONED if reason else admin_pb2.ROUND_STATE_COMMITTED
    now = federation.clock.now()
    transaction.execute(
        update(schema.rounds)
        .where(_rounds.task == current.task, _rounds.number == current.number)
        .values(state=state, reason=reason, bytes_sent=current.bytes_sent, ended_at=now, kept_from=now)
        .values(population=None, sitting_out="[]")
    )
    event = Event.ROUND_ABANDONED if reason else Event.ROUND_COMMITTED
    found = {**facts(task, current), "seconds": seconds, "reason": reason}

    def follow() -> None:
        federation.member_events[task.id, "missed"] += current.pending
        events.note(event, **found)

    transaction.after_commit(follow)


def facts(task: Task, current: Round) -> dict[str, str | int]:
    """The counts of a round, for the log."""
    counts = {"reported": current.reported, "pending": current.pending, "failures": current.failures}
    return {"task": task.name, "round": current.number, **counts}


def write_rules(federation: Federation, transaction: Transaction, task: Task, current: Round, outcome: Outcome) -> None:
    """Write which updates rules left out, whose clients sit out, and the norms that a later round is bounded by."""
    for client, reason in outcome.excluded.items():
        told = partial(events.note, Event.EXCLUDED, task=task.name, round=current.number)
        transaction.after_commit(partial(told, client=client, reason=reason))
        if client not in federation.clients:
            continue
        state = admin_pb2.MEMBER_STATE_EXCLUDED
        excluded = {"t": task.id, "r": current.number, "c": client, "state": state, "reason": reason}
        transaction.later(EXCLUDE_MEMBER, excluded)
        if task.settings.by_arrival:
            participation.quarantined(transaction, task, client, federation.clock.now())
    left_out = len(outcome.excluded)
    transaction.after_commit(lambda: federation.member_events.update({(task.id, "excluded"): left_out}))
    if outcome.bounds is not None:
        bounds = (current.phase, outcome.bounds)
        row = update(schema.tasks).where(_tasks.id == task.id)
        transaction.execute(row.values(bounds=json.dumps([current.phase, *outcome.bounds])))
        transaction.after_commit(lambda: setattr(task, "bounds", bounds))


def copy_state(
    transaction: Transaction, task: Task, current: Round, values: State, blobs: Mapping[Key, bytes]
) -> dict[int, frozenset[bytes]]:
    """Keep a copy of the shared state as it is after a round, and of earlier copies the latest and the released one.

    A state with entries of clients, which go on by themselves, is not copied.
    """
    if values.clients or current.phase >= task.method_phases:
        return task.copies
    method_state.keep(transaction, task.id, current.number, values.shared, blobs)
    digests = frozenset(digest for key, digest in blobs.items() if key.client == method_state.SHARED)
    copies = task.copies | {current.number: digests}
    released = 0 if task.released is None else task.released.round
    gone = {number for number in sorted(copies)[:-MAX_COPIES] if number != released}
    method_state.drop_copies(transaction, task.id, gone)
    return {number: digests for number, digests in copies.items() if number not in gone}
