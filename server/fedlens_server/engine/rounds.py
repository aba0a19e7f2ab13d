"""Transitions of tasks and rounds, each one transaction.

    task   waiting -> running -> finished | stopped | failed
    round  open -> closing -> committed | abandoned(reason)

`closing` freezes the set of updates. Committing a round, the state that follows from it and opening the next round are
one transaction, so that after a crash there is always exactly one place to go on from.
"""

import json
import logging
from concurrent.futures import Future
from contextlib import ExitStack
from contextvars import Context
from functools import partial
from math import inf
from typing import NamedTuple

from sqlalchemy import insert, update

from fedlens_proto import wire
from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine import evaluation, garbage, method_calls
from fedlens_server.engine.arrivals import participation
from fedlens_server.engine.cohorts import downloads, endings
from fedlens_server.engine.cohorts.cohort import Cohort, draw, eligible, members_of
from fedlens_server.engine.cohorts.endings import Outcome
from fedlens_server.engine.cohorts.held_places import HeldPlaces
from fedlens_server.engine.cohorts.members import (
    LEAVE_ENDED_ROUND,
    WRITE_MEMBER,
    Member,
    Round,
    RoundKey,
    member_row,
)
from fedlens_server.engine.garbage import Holding
from fedlens_server.engine.method_calls import MethodFailed, of_method
from fedlens_server.engine.task import ENDED, GlobalModel, Task
from fedlens_server.engine.view import Change, Federation, operation
from fedlens_server.errors import StorageFull, Unavailable
from fedlens_server.planning.method import NothingToAggregate, State
from fedlens_server.store import Transaction, columns, method_state, schema
from fedlens_server.store.method_state import Key, PreparedState
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

log = logging.getLogger(__name__)
RETRY_S = 5.0
NO_ROUND = 0  # as the number in a `RoundKey`: the task is to start
_rounds, _tasks = schema.rounds.c, schema.tasks.c


class Standing(NamedTuple):
    """State and counts of a task: columns of its row, each a field of `Task` too."""

    state: admin_pb2.TaskState
    reason: str
    committed: int
    abandoned: int


class Remaining(NamedTuple):
    """A task's state without forgotten clients: its values, its blobs by entry, and the blobs of those clients."""

    values: State
    blobs: dict[Key, bytes]
    freed: frozenset[bytes]


def start_ready(federation: Federation) -> None:
    """Start the tasks whose population has enrolled, and resume those that had no eligible clients.

    A start that fails is due again some seconds later.
    """
    tasks = list(federation.tasks.values())
    ready = [task.id for task in tasks if _can_start(federation, task) or _can_resume(federation, task)]
    for task_id in ready:
        try:
            starting = Context().run(start, federation, task_id)  # on behalf of no request
        except Unavailable:
            return  # the server is closing; they start when it is back
        starting.add_done_callback(partial(_start_later, federation, RoundKey(task_id, NO_ROUND)))


@operation()
def start(federation: Federation, transaction: Transaction, task_id: int) -> None:
    """Start a task, or resume one that had no eligible clients; no effect on one that was deleted since."""
    task = federation.tasks.get(task_id)
    if task is None:
        return
    running = Standing(admin_pb2.TASK_STATE_RUNNING, "", task.committed, task.abandoned)
    remaining = Remaining(task.values, task.state_blobs, frozenset())
    with ExitStack() as open_blobs:
        if _can_start(federation, task):
            try:
                population = () if task.settings.by_arrival else eligible(federation, task)
                tools = method_calls.tools(federation, task, 0, 0, population)
                begun = of_method(lambda: task.method.begin(task.phases[0], State(), tools))
                prepared = of_method(lambda: method_state.prepare(federation.store, State(), begun, open_blobs))
            except (MethodFailed, NothingToAggregate) as error:
                failed = running._replace(state=admin_pb2.TASK_STATE_FAILED, reason=str(error))
                go_on(federation, transaction, task, failed, remaining, task.evaluation)
                return
            method_state.save(transaction, task.id, prepared)
            remaining = remaining._replace(values=prepared.values, blobs=method_state.blobs_after({}, prepared))
        elif not _can_resume(federation, task):
            return
        go_on(federation, transaction, task, running, remaining, task.evaluation)


@operation()
def close(federation: Federation, transaction: Transaction, key: RoundKey) -> bool:
    """Freeze a round's updates if it is over; True: it is to be aggregated."""
    task = federation.tasks.get(key.task)
    current = None if task is None else task.round
    if task is None or current is None or current.key != key:
        return False
    if current.state == admin_pb2.ROUND_STATE_OPEN:
        if federation.clock.elapsed() < task.over_at(current):
            return False
        freeze(transaction, federation, task, current, "")
    return True


def freeze(transaction: Transaction, federation: Federation, task: Task, current: Round, by: str) -> None:
    """Take no more updates into an open round; `by` is the operator who ends it, empty: it is over."""
    transaction.execute(
        update(schema.rounds)
        .where(_rounds.task == current.task, _rounds.number == current.number)
        .values(state=admin_pb2.ROUND_STATE_CLOSING, bytes_sent=current.bytes_sent, ended_by=by)
    )

    def follow() -> None:
        current.state, current.ended_by = admin_pb2.ROUND_STATE_CLOSING, by
        federation.changed(due=True)
        events.note(Event.ROUND_CLOSED, **endings.facts(task, current))

    transaction.after_commit(follow)


def next_cohort(federation: Federation, task: Task, outcome: Outcome) -> Cohort | None:
    """Draw the cohort of the round that `end` will open with this state, and find the digests of its computed blobs.

    None: no round opens, or `end` has to draw it and meets the method's failure again.
    """
    prepared = outcome.prepared
    standing = _standing_after(task, prepared, outcome.reason)
    if standing.state != admin_pb2.TASK_STATE_RUNNING or task.paused:
        return None
    if task.settings.by_arrival:
        return None  # its round opens empty
    remaining = method_state.without(prepared or PreparedState(task.values), federation.forgotten)
    try:
        drawn = draw(federation, task, remaining.values, standing.committed)
    except (MethodFailed, NothingToAggregate, StorageFull):
        return None
    if task.settings.download_codec != "f32":
        return drawn
    sets = (tensors for downloaded in drawn.downloads.values() for tensors in downloaded.values())
    return drawn._replace(digests=downloads.find_digests(federation, task, sets, prepared.blobs if prepared else ()))


@operation()
def end(
    federation: Federation,
    transaction: Transaction,
    key: RoundKey,
    outcome: Outcome,
    cohort: Cohort | None,
) -> None:
    """Commit a closing round with its new state, or abandon it with a reason; then open the next one.

    Args:
        federation: Holds the task.
        transaction: Takes all of it.
        key: The round.
        outcome: Of its aggregation.
        cohort: Of `next_cohort`; drawn anew if clients have come or gone since.
    """
    task = federation.tasks.get(key.task)
    current = None if task is None else task.round
    if task is None or current is None or current.key != key or task.ended:
        return
    prepared, reason = outcome.prepared, outcome.reason
    remaining = without_forgotten(federation, transaction, task, prepared)
    endings.write(federation, transaction, task, current, reason)
    endings.write_rules(federation, transaction, task, current, outcome)
    standing = _standing_after(task, prepared, reason)
    model, copies = task.evaluation, task.copies
    if prepared is not None:
        participation.committed(transaction, task, current)
        model = evaluation.model_after(federation, transaction, task, current, remaining.values, standing.committed)
        copies = endings.copy_state(transaction, task, current, remaining.values, remaining.blobs)
    pauses = evaluation.decide(federation, transaction, task, model)
    go_on(federation, transaction, task, standing, remaining, model, cohort, copies, opens=not pauses)


def stop(federation: Federation, transaction: Transaction, task: Task) -> None:
    """End a task at the operator's word; its round is abandoned, its model stays."""
    if task.round is not None:
        endings.write(federation, transaction, task, task.round, "the task was stopped")
    remaining = without_forgotten(federation, transaction, task, None)
    stopped = Standing(admin_pb2.TASK_STATE_STOPPED, "", task.committed, task.abandoned)
    go_on(federation, transaction, task, stopped, remaining, task.evaluation)


def _standing_after(task: Task, prepared: PreparedState | None, reason: str) -> Standing:
    """The standing of a task whose round commits a state or, None, is abandoned for this reason."""
    committed, abandoned = task.committed, task.abandoned
    if prepared is not None:
        committed, abandoned = committed + 1, 0
    elif task.round is None or not task.round.ended_by:
        abandoned += 1
    if abandoned >= task.settings.max_consecutive_abandoned:
        why = f"rounds abandoned in a row: {abandoned}; the last one because {reason}"
        return Standing(admin_pb2.TASK_STATE_FAILED, why, committed, abandoned)
    finished = committed == task.rounds_total
    state = admin_pb2.TASK_STATE_FINISHED if finished else admin_pb2.TASK_STATE_RUNNING
    return Standing(state, "", committed, abandoned)


def without_forgotten(
    federation: Federation, transaction: Transaction, task: Task, prepared: PreparedState | None
) -> Remaining:
    """Save a state, None: the present one, without forgotten clients, who also leave the task's round."""
    owned = method_state.of_clients(task.values, federation.forgotten)
    freed = {task.state_blobs[key] for key in owned if key in task.state_blobs}
    saved = method_state.without(prepared or PreparedState(task.values), federation.forgotten)
    method_state.save(transaction, task.id, saved)
    if (current := task.round) is not None:
        for client in current.members.keys() & federation.forgotten:
            transaction.later(LEAVE_ENDED_ROUND, {"t": task.id, "r": current.number, "c": client})
            freed.update(current.members[client].blobs.values())
    return Remaining(saved.values, method_state.blobs_after(task.state_blobs, saved), frozenset(freed))


def _start_later(federation: Federation, key: RoundKey, done: Future[None]) -> None:
    error = done.exception()
    if error is None:
        return
    log.error("task %d could not start: %s; trying again in %g s", key.task, error, RETRY_S)
    federation.retry_at[key] = federation.clock.elapsed() + RETRY_S
    federation.tell(Change(due=True))


def _can_start(federation: Federation, task: Task) -> bool:
    if task.state != admin_pb2.TASK_STATE_WAITING or task.suspended or task.paused:
        return False
    return federation.clients.count(task.may_train) >= (task.settings.population or 0)


def _can_resume(federation: Federation, task: Task) -> bool:
    if task.state != admin_pb2.TASK_STATE_RUNNING or task.round is not None or task.paused:
        return False
    if federation.clients.count(task.may_train) > len(task.exhausted):
        return True
    return federation.clients.has(task.may_train, but_for=task.exhausted)  # some of those may be banned


def go_on(
    federation: Federation,
    transaction: Transaction,
    task: Task,
    standing: Standing,
    remaining: Remaining,
    model: GlobalModel | None,
    cohort: Cohort | None = None,
    copies: dict[int, frozenset[bytes]] | None = None,
    *,
    opens: bool = True,
) -> None:
    """Write where the task stands now, with a new round if it is running; sweep; have the view follow.

    Args:
        federation: Holds the task.
        transaction: Takes all of it.
        task: The task.
        standing: Its new state and counts.
        remaining: The method's new state.
        model: For evaluators.
        cohort: Of the new round, as of `next_cohort`.
        copies: Kept of the shared state, as in `Task`; None: those that it has.
        opens: False: no round, as the same transaction pauses the task.
    """
    copies = task.copies if copies is None else copies
    following: Round | None = None
    if opens and standing.state == admin_pb2.TASK_STATE_RUNNING and not task.paused:
        try:
            following = _open(federation, transaction, task, remaining.values, standing.committed, cohort)
        except (MethodFailed, NothingToAggregate) as error:
            standing = standing._replace(state=admin_pb2.TASK_STATE_FAILED, reason=str(error))
    transaction.execute(
        update(schema.tasks)
        .where(_tasks.id == task.id)
        .values(
            **standing._asdict(),
            evaluation_round=model.round if model else None,
            evaluation_phase=model.phase if model else None,
            evaluation_sets=columns.sets_to_json(model.sets) if model else None,
        )
    )
    holding = Holding(remaining.blobs, following, model, copies)
    garbage.sweep(federation, transaction, task, holding, remaining.freed, ended=standing.state in ENDED)

    def follow() -> None:
        if task.state == admin_pb2.TASK_STATE_WAITING and standing.state == admin_pb2.TASK_STATE_RUNNING:
            events.note(Event.TASK_STARTED, task=task.name)
        if standing.state in ENDED:
            state = wire.word(admin_pb2.TaskState, standing.state)
            committed, reason = standing.committed, standing.reason
            events.note(Event.TASK_ENDED, task=task.name, state=state, committed=committed, reason=reason)
        if following is not None:
            phase, members = task.phases[following.phase].name, len(following.members)
            events.note(Event.ROUND_OPENED, task=task.name, round=following.number, phase=phase, members=members)
        with task.moving:
            for name, value in standing._asdict().items():
                setattr(task, name, value)
            if model is not task.evaluation:
                task.older_evaluations = task.awaited_evaluations(federation.clock.elapsed())
            task.values, task.state_blobs, task.evaluation = remaining.values, remaining.blobs, model
            task.copies = copies
            task.distinct_models = {}
            task.current_models = {}  # after the values, so that what is cached in it belongs to them
            task.round = following
        if following is None:
            federation.changed([task.id], due=True)
        else:
            # Places give those of a round that opens empty, and wake who gets one.
            task.next_round = following.number + 1
            federation.member_events[task.id, "given"] += len(following.members)
            federation.changed(models=[task.id], clients=following.members, due=True)
        start_ready(federation)  # a client that enrolled in between may be the one that was waited for

    transaction.after_commit(follow)


def _open(
    federation: Federation,
    transaction: Transaction,
    task: Task,
    values: State,
    committed: int,
    cohort: Cohort | None,
) -> Round | None:
    """Open the round that follows so many committed ones; None: no client is eligible.

    Raises:
        MethodFailed, NothingToAggregate, StorageFull: The method gives no downloads.
    """
    if task.settings.by_arrival:
        cohort = Cohort(task.phase_of(committed), (), values, {}, frozenset(), {})
        return _written(federation, transaction, task, cohort, {}, inf)
    same = cohort is not None and cohort.population == eligible(federation, task)
    if cohort is None or not same or cohort.values.clients.keys() != values.clients.keys():
        digests = {} if cohort is None else cohort.digests
        cohort = draw(federation, task, values, committed)._replace(digests=digests)
    if not cohort.population:
        return None  # resumes when a client enrols
    members = members_of(federation, transaction, task, cohort, task.round, {})
    if participation.counts(task.settings):
        participation.load(federation, task, members)
    deadline = federation.clock.elapsed() + task.settings.deadline_s
    return _written(federation, transaction, task, cohort, members, deadline)


def _written(
    federation: Federation,
    transaction: Transaction,
    task: Task,
    cohort: Cohort,
    members: dict[bytes, Member],
    deadline: float,
) -> Round:
    """Write a new round with its first members."""
    current = Round(
        task=task.id,
        number=task.next_round,
        phase=cohort.phase,
        state=admin_pb2.ROUND_STATE_OPEN,
        deadline=deadline,
        started=None if task.settings.by_arrival else federation.clock.elapsed(),
        members=members,
        sitting_out=cohort.sitting_out,
        population=cohort.population,
        held=HeldPlaces() if task.settings.by_arrival else None,
    )
    keys = {"task": current.task, "number": current.number, "phase": current.phase, "state": current.state}
    clients = {
        "population": b"".join(current.population),
        "sitting_out": json.dumps([client.hex() for client in sorted(current.sitting_out)]),
    }
    opened_at = federation.clock.now()
    transaction.execute(
        insert(schema.rounds), {**keys, **clients, "reason": "", "opened_at": opened_at, "bytes_sent": 0}
    )
    for client, member in members.items():
        transaction.later(WRITE_MEMBER, member_row(current, client, member))
    return current
