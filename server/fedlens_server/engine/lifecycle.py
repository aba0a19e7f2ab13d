"""What happens to tasks and rounds: every transition, each one operation of the writing thread.

    task   waiting -> running -> finished | stopped | failed
    round  open -> closing -> committed | abandoned(reason)

`closing` freezes the set of updates. Committing a round, the state that follows from it and opening the next round are
one transaction, so that after a crash there is always exactly one place to go on from.
"""

import logging
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial

from sqlalchemy import bindparam, update

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine import downloads, garbage, method_calls
from fedlens_server.engine.method_calls import MethodFailed, of_method
from fedlens_server.engine.opening import global_model, open_round
from fedlens_server.engine.view import ENDED, Federation, GlobalModel, Round, RoundKey, Task
from fedlens_server.errors import Unavailable
from fedlens_server.methods import NothingToAggregate, State
from fedlens_server.store import Transaction, method_state, schema
from fedlens_server.store.method_state import PreparedState

log = logging.getLogger(__name__)
RETRY_S = 5.0
NO_ROUND = 0  # as the number in a `RoundKey`: the task is to start
_rounds, _members, _tasks = schema.rounds.c, schema.members.c, schema.tasks.c
LEAVE_MEMBER = (
    update(schema.members)
    .where(
        _members.task == bindparam("t"), _members.round == bindparam("r"), _members.client == bindparam("c")
    )
    .values(
        state=admin_pb2.MEMBER_STATE_LEFT, sets="{}", reason="", body_sha256=None, bytes_received=0, num_examples=0,
        class_counts=None, label_distribution=None, evaluations="[]", blob=None,
    )
)  # fmt: skip


def start_ready(federation: Federation) -> None:
    """Have tasks start whose population has enrolled; what fails is due again some seconds later."""
    ready = [task.id for task in list(federation.tasks.values()) if _can_start(task) or _can_go_on(task)]
    for task_id in ready:
        try:
            starting = federation.store.submit(partial(start, federation, task_id=task_id))
        except Unavailable:
            return  # the server is closing; they start when it is back
        starting.add_done_callback(partial(_start_later, federation, RoundKey(task_id, NO_ROUND)))


def start(federation: Federation, transaction: Transaction, task_id: int) -> None:
    """Start a task, or go on with one for which nobody was there."""
    task = federation.tasks[task_id]
    with ExitStack() as open_blobs:
        if _can_start(task):
            population = tuple(sorted(task.eligible))
            try:
                begun = of_method(
                    lambda: task.method.begin(task.phases[0], {}, method_calls.tools(federation, task, 0, population))
                )
                prepared = of_method(lambda: method_state.prepare(federation.store, {}, begun, open_blobs))
            except (MethodFailed, NothingToAggregate) as error:
                _fail(federation, transaction, task, str(error))
                return
            method_state.save(transaction, task.id, prepared)
            blobs = method_state.blobs_after({}, prepared)
            _go_on(federation, transaction, task, prepared.values, blobs, task.evaluation)
        elif _can_go_on(task):
            _go_on(federation, transaction, task, task.values, task.kept_blobs, task.evaluation)


def begin_closing(federation: Federation, transaction: Transaction, key: RoundKey) -> bool:
    """Freeze a round's updates if it is over; whether it is to be aggregated."""
    task = federation.tasks[key.task]
    current = task.round
    if current is None or current.key != key:
        return False
    if current.state == admin_pb2.ROUND_STATE_OPEN:
        if current.pending and federation.clock.now() < current.deadline:
            return False
        transaction.execute(
            update(schema.rounds)
            .where(_rounds.task == key.task, _rounds.number == key.round)
            .values(state=admin_pb2.ROUND_STATE_CLOSING, bytes_sent=current.bytes_sent)
        )
        transaction.after_commit(lambda: setattr(current, "state", admin_pb2.ROUND_STATE_CLOSING))
        transaction.after_commit(lambda: federation.changed([key.task], due=True))
    return True


def end_round(
    federation: Federation, transaction: Transaction, key: RoundKey, prepared: PreparedState | None, reason: str
) -> None:
    """Commit a closing round with its new state, or abandon it with a reason; then open the next one."""
    task = federation.tasks[key.task]
    current = task.round
    if current is None or current.key != key or task.ended:
        return
    values, blobs, freed = _without_forgotten(federation, transaction, task, prepared)
    _write_end(federation, transaction, current, reason)
    committed = task.committed + (prepared is not None)
    abandoned = 0 if prepared is not None else task.abandoned + 1
    evaluation = task.evaluation
    if prepared is not None and current.phase < task.method_phases:
        every = task.settings.evaluate_every
        if committed % every == 0 or task.phase_of(committed) >= task.method_phases or committed == task.rounds_total:
            try:
                evaluation = global_model(federation, transaction, task, current, values) or evaluation
            except (MethodFailed, NothingToAggregate) as error:
                log.warning("task %s, round %d has no global model: %s", task.name, current.number, error)
    if abandoned >= task.settings.max_consecutive_abandoned:
        why = f"{abandoned} rounds were abandoned in a row, the last one because {reason}"
        _go_on(
            federation, transaction, task, values, blobs, evaluation, committed, abandoned,
            ended=(admin_pb2.TASK_STATE_FAILED, why), freed=freed,
        )  # fmt: skip
    elif committed == task.rounds_total:
        _go_on(
            federation, transaction, task, values, blobs, evaluation, committed, abandoned,
            ended=(admin_pb2.TASK_STATE_FINISHED, ""), freed=freed,
        )  # fmt: skip
    else:
        _go_on(federation, transaction, task, values, blobs, evaluation, committed, abandoned, freed=freed)


def stop(federation: Federation, transaction: Transaction, task: Task) -> None:
    """End a task by the operator's word; its round is abandoned, its model stays."""
    if task.ended:
        return
    if task.round is not None:
        _write_end(federation, transaction, task.round, "the task was stopped")
    values, blobs, freed = _without_forgotten(federation, transaction, task, None)
    ended = (admin_pb2.TASK_STATE_STOPPED, "")
    _go_on(federation, transaction, task, values, blobs, task.evaluation, ended=ended, freed=freed)


def _without_forgotten(
    federation: Federation, transaction: Transaction, task: Task, prepared: PreparedState | None
) -> tuple[State, dict[str, bytes], set[bytes]]:
    """Save a state, None: the present one, without forgotten clients, who also leave the task's round.

    Returns:
        The values; by entry their blobs; the blobs of those clients, which may be deleted.
    """
    owned = method_state.of_clients(task.values, federation.forgotten)
    freed = {task.kept_blobs[name] for name in owned if name in task.kept_blobs}
    saved = method_state.without(prepared or PreparedState(task.values), federation.forgotten)
    method_state.save(transaction, task.id, saved)
    if (current := task.round) is not None:
        for client in current.members.keys() & federation.forgotten:
            transaction.later(LEAVE_MEMBER, {"t": task.id, "r": current.number, "c": client})
            if (blob := current.members[client].blob) is not None:
                freed.add(blob)
    return saved.values, method_state.blobs_after(task.kept_blobs, saved), freed


def _start_later(federation: Federation, key: RoundKey, done: Future[None]) -> None:
    error = done.exception()
    if error is None:
        return
    log.error("task %d could not start: %s; trying again in %g s", key.task, error, RETRY_S)
    federation.retry_at[key] = federation.clock.now() + RETRY_S
    with suppress(Unavailable):
        # A commit of nothing, which no disk is too full for, tells of it.
        federation.store.submit(lambda transaction: transaction.after_commit(lambda: federation.changed(due=True)))


def _can_start(task: Task) -> bool:
    return task.state == admin_pb2.TASK_STATE_WAITING and len(task.eligible) >= task.settings.population


def _can_go_on(task: Task) -> bool:
    return task.state == admin_pb2.TASK_STATE_RUNNING and task.round is None and bool(task.eligible)


def _go_on(
    federation: Federation,
    transaction: Transaction,
    task: Task,
    values: State,
    blobs: dict[str, bytes],
    evaluation: GlobalModel | None,
    committed: int | None = None,
    abandoned: int | None = None,
    ended: tuple[admin_pb2.TaskState, str] | None = None,
    freed: Collection[bytes] = (),
) -> None:
    """Write where the task stands now, with the round that is open now; sweep; have the view follow.

    Of the blobs `freed`, those that nothing holds any more are deleted at once.
    """
    committed = task.committed if committed is None else committed
    abandoned = task.abandoned if abandoned is None else abandoned
    state, reason = ended or (admin_pb2.TASK_STATE_RUNNING, "")
    following: Round | None = None
    if ended is None:
        try:
            following = open_round(federation, transaction, task, values, committed)
        except (MethodFailed, NothingToAggregate) as error:
            state, reason = admin_pb2.TASK_STATE_FAILED, str(error)
    transaction.execute(
        update(schema.tasks)
        .where(_tasks.id == task.id)
        .values(
            state=state,
            reason=reason,
            committed=committed,
            abandoned=abandoned,
            evaluation_round=evaluation.round if evaluation else None,
            evaluation_phase=evaluation.phase if evaluation else None,
            evaluation_sets=downloads.to_json(evaluation.sets) if evaluation else None,
        )
    )
    garbage.sweep(federation, transaction, task, (blobs, following, evaluation), freed, ended=state in ENDED)

    def follow() -> None:
        task.state, task.reason = state, reason
        task.committed, task.abandoned = committed, abandoned
        task.values, task.kept_blobs, task.evaluation = values, blobs, evaluation
        task.current_sets = {}  # after the values, so that what is kept in it belongs to them
        task.round = following
        if following is not None:
            task.next_round = following.number + 1
        federation.changed([task.id], due=True)
        start_ready(federation)  # who enrolled in between may be the one that was waited for

    transaction.after_commit(follow)


def _write_end(federation: Federation, transaction: Transaction, current: Round, reason: str) -> None:
    state = admin_pb2.ROUND_STATE_ABANDONED if reason else admin_pb2.ROUND_STATE_COMMITTED
    transaction.execute(
        update(schema.rounds)
        .where(_rounds.task == current.task, _rounds.number == current.number)
        .values(
            state=state,
            reason=reason,
            ended_at=federation.clock.now(),
            bytes_sent=current.bytes_sent,
            population=None,
            sitting_out="[]",
        )
    )


def _fail(federation: Federation, transaction: Transaction, task: Task, reason: str) -> None:
    ended = (admin_pb2.TASK_STATE_FAILED, reason)
    _go_on(federation, transaction, task, task.values, task.kept_blobs, task.evaluation, ended=ended)
