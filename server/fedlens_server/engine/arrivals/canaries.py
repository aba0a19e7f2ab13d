"""Canaries: the first clients of a task with each bundle. Others get places once so many, `canary`, have reported.

A report counts whatever becomes of its round. A client that reports in several rounds counts in each: few clients would
otherwise train one after the other for ever.
"""

from sqlalchemy import bindparam, update

from fedlens_server.engine.cohorts.members import Round
from fedlens_server.engine.task import Task
from fedlens_server.store import Transaction, schema

_columns = schema.task_bundles.c
_COUNT = (
    update(schema.task_bundles)
    .where(_columns.task == bindparam("t"), _columns.position == bindparam("p"))
    .values(reports=_columns.reports + 1)
)


def room(task: Task, current: Round, bundle: bytes, free: int, now: float) -> int:
    """The number of a round's free places that clients with a bundle, by its digest, can take."""
    assert current.held is not None  # members are not drawn
    # Places before reports: a report counts before it frees its place, which is then not taken for a canary's.
    taken = current.held.taken_with(bundle, now)
    left = _left(task, bundle)
    return free if left <= 0 else min(free, max(0, left - taken))


def reported(transaction: Transaction, task: Task, bundle: bytes) -> None:
    """Write that a client with a bundle, by its digest, has reported; no effect if enough have."""
    if task.settings.by_arrival and _left(task, bundle) > 0:
        position = next(i for i, each in enumerate(task.bundles) if each.id == bundle)
        transaction.later(_COUNT, {"t": task.id, "p": position})
        transaction.after_commit(lambda: task.reports.update([bundle]))


def awaited(task: Task) -> list[int]:
    """By bundle, the number of reports for which other clients with it wait; empty: nobody waits."""
    counts = [max(0, _left(task, each.id)) for each in task.bundles]
    return counts if task.settings.by_arrival and not task.ended and any(counts) else []


def notices(task: Task) -> list[str]:
    """The texts of `awaited` for operators; empty: nobody waits."""
    return [
        f"canaries: other clients get places after {count} more report{'s' if count > 1 else ''} with bundle "
        f"{bundle.id.hex()[:12]}"
        for bundle, count in zip(task.bundles, awaited(task), strict=False)
        if count
    ]


def _left(task: Task, bundle: bytes) -> int:
    return task.settings.canary - task.reports[bundle]
