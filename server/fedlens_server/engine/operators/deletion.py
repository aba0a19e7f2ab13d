"""Deletion of tasks that have ended: gone at once for clients and operators, from the disk in small pieces."""

from sqlalchemy import delete, select, tuple_, update

from fedlens_server.engine import garbage
from fedlens_server.engine.operators import audit
from fedlens_server.engine.operators.access import Operator
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import TaskDiffers, Unknown
from fedlens_server.store import Transaction, schema

# Rows that one transaction deletes: some 10 ms, for which updates wait.
MAX_ROWS = 500
# Rows refer to those of later tables.
_TABLES = (schema.members, schema.evaluations, schema.participants, schema.rounds, schema.task_bundles)
_tasks = schema.tasks.c


@operation()
def begin(federation: Federation, transaction: Transaction, task: Task, by: Operator) -> None:
    """Take an ended task away, so that its name is free; `go_on` deletes what is stored of it.

    Raises:
        TaskDiffers: It has not ended.
        Unknown: It has been deleted since it was found.
    """
    if task.id not in federation.tasks:
        raise Unknown(f"there is no task {task.name!r}")
    if not task.ended:
        raise TaskDiffers(f"task {task.name!r} goes on; stop it first")
    audit.record(federation, transaction, by, "task delete", task.name)
    # No task can be given such a name.
    freed = update(schema.tasks).where(_tasks.id == task.id).values(name=f"\n{task.id}", deleted=True)
    transaction.execute(freed)
    # At once: they refer to blobs, which the next sweep of any task deletes.
    transaction.execute(delete(schema.state_entries).where(schema.state_entries.c.task == task.id))

    def follow() -> None:
        del federation.tasks[task.id]
        federation.deleting.add(task.id)
        federation.changed([task.id], due=True)

    transaction.after_commit(follow)


@operation()
def go_on(federation: Federation, transaction: Transaction) -> None:
    """Delete some rows of deleted tasks; at last the tasks, and the blobs that no other one needs.

    Call it until `federation.deleting` is empty, also after a restart.
    """
    for task in sorted(federation.deleting):
        for table in _TABLES:
            keys = list(table.primary_key.columns)
            rows = transaction.execute(select(*keys).where(table.c.task == task).limit(MAX_ROWS)).all()
            if rows:
                transaction.execute(delete(table).where(tuple_(*keys).in_([tuple(row) for row in rows])))
                return
    transaction.execute(delete(schema.tasks).where(_tasks.id.in_(federation.deleting)))
    garbage.sweep_all(federation, transaction)
    transaction.after_commit(federation.deleting.clear)
