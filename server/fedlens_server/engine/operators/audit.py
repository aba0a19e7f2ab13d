"""The log of changes by operators: a row in the transaction of each change, and an event; the latest rows are kept."""

from functools import partial

from sqlalchemy import delete, insert, select

from fedlens_proto.v1 import admission_pb2
from fedlens_server.engine.operators.access import Operator
from fedlens_server.engine.view import Federation
from fedlens_server.store import Transaction, schema
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

KEPT = 100_000
MAX_LISTED = 1_000
_columns = schema.audit.c
_INSERT = insert(schema.audit).returning(_columns.id)


def record(
    federation: Federation, transaction: Transaction, by: Operator, action: str, subject: str, detail: str = ""
) -> None:
    """Write what an operator changes, in the transaction that changes it.

    Args:
        federation: Has the time.
        transaction: Also makes the change.
        by: The operator.
        action: As on the command line, such as `task stop`.
        subject: The name of a task or token, or the id of a client in hexadecimal.
        detail: Text beside it, such as a reason.
    """
    row = {"at": federation.clock.now(), "operator": by.name, "action": action, "subject": subject, "detail": detail}
    newest = transaction.execute(_INSERT, row).scalar_one()
    transaction.execute(delete(schema.audit).where(_columns.id <= newest - KEPT))
    told = partial(events.note, Event.OPERATED, by=by.name, action=action, subject=subject, detail=detail)
    transaction.after_commit(told)


def listed(federation: Federation, since: float, before: int | None = None) -> admission_pb2.ListAuditResponse:
    """The latest changes, at most `MAX_LISTED`, since a time in seconds since the epoch and before an entry's id."""
    wanted = select(schema.audit).where(_columns.at >= since)
    if before is not None:
        wanted = wanted.where(_columns.id < before)
    rows = federation.store.read(wanted.order_by(_columns.id.desc()).limit(MAX_LISTED))
    return admission_pb2.ListAuditResponse(entries=[admission_pb2.AuditEntry(**row._mapping) for row in rows])
