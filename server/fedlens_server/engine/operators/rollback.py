"""Going back to the state of an earlier round, and choosing the state whose model clients predict with.

Both need the shared state as it was after a round, of which a task keeps copies of the last three commits. Entries of
single clients are not copied: where shared and per-client state belong together, nothing can be rolled back.
"""

import json

from sqlalchemy import func, select, update

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine import rounds
from fedlens_server.engine.cohorts import endings
from fedlens_server.engine.operators import audit
from fedlens_server.engine.operators.access import Operator
from fedlens_server.engine.operators.control import need_method
from fedlens_server.engine.rounds import Remaining, Standing
from fedlens_server.engine.task import Release, Task
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import Malformed, TaskDiffers
from fedlens_server.store import Transaction, method_state, schema

_rounds, _tasks = schema.rounds.c, schema.tasks.c


@operation()
def roll_back(federation: Federation, transaction: Transaction, task: Task, number: int, by: Operator) -> None:
    """Go on from the shared state as it was after a round: the open round is abandoned, later ones become undone.

    Numbers of rounds go on. Client state on phones, participations and spent privacy stay. A later release goes back to
    the round, too.

    Raises:
        TaskDiffers: The task has ended, or its method has state of single clients on the server.
        Unavailable: The task is suspended.
        Malformed: No state is kept of the round.
    """
    if task.ended:
        raise TaskDiffers(f"task {task.name!r} has ended; nothing of it can be rolled back")
    need_method(task)
    _need_copy(task, number)
    audit.record(federation, transaction, by, "task rollback", task.name, f"round {number}")
    if task.round is not None:
        endings.write(federation, transaction, task, task.round, f"rolled back to round {number} by {by.name}")
    later = (_rounds.task == task.id, _rounds.number > number)
    transaction.execute(
        update(schema.rounds)
        .where(*later, _rounds.state == admin_pb2.ROUND_STATE_COMMITTED)
        .values(state=admin_pb2.ROUND_STATE_UNDONE, reason=f"rolled back to round {number} by {by.name}")
    )
    committed = _committed(transaction, task, number)
    values, blobs = method_state.load(federation.store, task.id, number)
    method_state.keep(transaction, task.id, method_state.PRESENT, values.shared, blobs)
    gone = {method_state.Key(method_state.SHARED, name) for name in task.values.shared.keys() - values.shared.keys()}
    method_state.remove(transaction, task.id, gone)
    copies = {kept: digests for kept, digests in task.copies.items() if kept <= number}
    method_state.drop_copies(transaction, task.id, task.copies.keys() - copies.keys())
    standing = Standing(admin_pb2.TASK_STATE_RUNNING, "", committed, 0)
    remaining = Remaining(values, blobs, frozenset())
    rounds.go_on(federation, transaction, task, standing, remaining, None, copies=copies)

    def forget_undone() -> None:
        task.older_evaluations = tuple(model for model in task.older_evaluations if model.round <= number)

    transaction.after_commit(forget_undone)
    if task.released is not None and task.released.round > number:
        _write_release(federation, transaction, task, Release(round=number, committed=committed, values=values))


@operation()
def release(federation: Federation, transaction: Transaction, task: Task, number: int, by: Operator) -> None:
    """Have clients predict with the model after a round, 0: after the last one, until the next release.

    Raises:
        TaskDiffers: The task releases every model by itself, or its method has state of single clients on the server.
        Malformed: No state is kept of the round.
    """
    if task.settings.release != "manual":
        raise TaskDiffers(f'task {task.name!r} has release "auto": clients predict with the last committed model')
    number = number or max(task.copies, default=0)
    _need_copy(task, number)
    audit.record(federation, transaction, by, "task release", task.name, f"round {number}")
    committed = _committed(transaction, task, number)
    values, _ = method_state.load(federation.store, task.id, number)
    _write_release(federation, transaction, task, Release(round=number, committed=committed, values=values))


def _write_release(federation: Federation, transaction: Transaction, task: Task, found: Release) -> None:
    row = update(schema.tasks).where(_tasks.id == task.id)
    transaction.execute(row.values(released=json.dumps([found.round, found.committed])))

    def follow() -> None:
        task.released = found
        task.distinct_models = {}
        task.current_models = {}
        federation.changed([task.id])

    transaction.after_commit(follow)


def _need_copy(task: Task, number: int) -> None:
    if task.method.per_client or task.values.clients:
        raise TaskDiffers(
            f"method {task.settings.method!r} has state of single clients, which has gone on since; only shared state "
            "can be taken from an earlier round"
        )
    if number not in task.copies:
        if not task.copies:
            raise Malformed(f"round: task {task.name!r} has kept no round's state yet")
        kept = ", ".join(map(str, sorted(task.copies)))
        raise Malformed(f"round: found {number}, must be one whose state is kept: {kept}")


def _committed(transaction: Transaction, task: Task, number: int) -> int:
    """The number of committed rounds up to one of them."""
    states = (_rounds.task == task.id, _rounds.number <= number, _rounds.state == admin_pb2.ROUND_STATE_COMMITTED)
    return transaction.execute(select(func.count()).select_from(schema.rounds).where(*states)).scalar() or 0
