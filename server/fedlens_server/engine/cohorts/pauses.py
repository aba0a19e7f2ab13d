"""Pauses of a task, by an operator or by itself because its model has become worse."""

from collections.abc import Iterable

from sqlalchemy import select, update

from fedlens_proto.v1 import admin_pb2, update_pb2
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.store import Transaction, schema
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

ROUNDS = 10
_tasks, _columns, _rounds = schema.tasks.c, schema.evaluations.c, schema.rounds.c
Sums = Iterable[update_pb2.EvaluationSums]


def write(federation: Federation, transaction: Transaction, task: Task, reason: str, number: int | None = None) -> None:
    """Write that a task gives no more places and opens no more rounds, why, and for the model of which round."""
    values = {"paused": reason} if number is None else {"paused": reason, "paused_for": number}
    transaction.execute(update(schema.tasks).where(_tasks.id == task.id).values(values))

    def follow() -> None:
        task.paused = reason
        federation.changed([task.id], due=True)
        events.note(Event.TASK_PAUSED, task=task.name, reason=reason)

    transaction.after_commit(follow)


def fall(task: Task, number: int, measured: Iterable[tuple[int, Sums]]) -> str:
    """By how much the model of a round is worse than the best of the 10 evaluated rounds before it, in words.

    Args:
        task: With the setting `pause_if_accuracy_falls`.
        number: The round.
        measured: Evaluations of this round and of earlier ones, by round.

    Returns:
        Empty: it is not worse by as much as the task allows.
    """
    right, all_of = dict[int, int](), dict[int, int]()
    for found, sums in measured:
        first = next(iter(sums))
        right[found] = right.get(found, 0) + first.correct
        all_of[found] = all_of.get(found, 0) + first.count
    accuracy = {found: 100 * right[found] / all_of[found] for found in sorted(all_of) if all_of[found]}
    before = [found for found in accuracy if found < number][-ROUNDS:]
    allowed = task.settings.pause_if_accuracy_falls
    if allowed is None or not before or number not in accuracy:
        return ""
    best = max(before, key=accuracy.__getitem__)
    if accuracy[number] > accuracy[best] - allowed:
        return ""
    return (
        f"because accuracy fell: {accuracy[number]:.1f} % after round {number}, {accuracy[best]:.1f} % after "
        f"round {best}; the task allows less than {allowed:g} points"
    )


def evaluations_before(transaction: Transaction, task: Task, number: int) -> list[tuple[int, str]]:
    """The stored evaluations of a round and of the 10 evaluated ones before it that stand, as JSON, by round."""
    stands = (_columns.task == task.id, _columns.round <= number, _rounds.state == admin_pb2.ROUND_STATE_COMMITTED)
    measured = select(_columns.round).join_from(schema.evaluations, schema.rounds).where(*stands).distinct()
    numbers = measured.order_by(_columns.round.desc()).limit(ROUNDS + 1)
    rows = transaction.execute(
        select(_columns.round, _columns.evaluations).where(_columns.task == task.id, _columns.round.in_(numbers))
    ).all()
    return [(row.round, row.evaluations) for row in rows]
