"""Publishers' statements about the bundles of tasks: checked, renewed while a task runs, and their ends told ahead.

Phones decide for themselves whom they trust. What is refused here is a guard against an operator's mistakes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlalchemy import update

from fedlens_proto.errors import StatementRefused
from fedlens_proto.programs import statements
from fedlens_proto.v1 import statement_pb2
from fedlens_server.clock import DAY_S
from fedlens_server.engine.operators import audit
from fedlens_server.engine.operators.access import Operator
from fedlens_server.engine.operators.control import need_going
from fedlens_server.engine.task import Task, TaskBundle
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import Malformed, TaskDiffers
from fedlens_server.store import Transaction, schema
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

NOTICE_S = 14 * DAY_S
"""The time before the end of a statement from which on operators are told."""
_SIGN = "sign the bundle with `fedlens sign`"
_bundles = schema.task_bundles.c


def check(federation: Federation, manifest: bytes, signed: bytes) -> statement_pb2.Statement | None:
    """Check a signed statement about the bundle whose manifest has this SHA-256; returns what it says, None: nothing.

    Raises:
        Malformed: It is damaged, about another bundle, at its end, or none of the server's publishers signed it.
    """
    publishers = federation.publishers
    if not signed:
        if publishers:
            known = ", ".join(each.id.hex()[:12] for each in publishers)
            raise Malformed(
                f"the bundle is not signed; this server takes only bundles signed by its publishers ({known}); {_SIGN}"
            )
        return None
    try:
        found = statements.verified(signed, manifest, publishers) if publishers else statements.about(signed, manifest)
        statements.check_time(found, federation.clock.calendar())
    except StatementRefused as error:
        raise Malformed(f"{error}; {_SIGN}") from error
    return found


@operation()
def renew(federation: Federation, transaction: Transaction, task: Task, signed: Sequence[bytes], by: Operator) -> None:
    """Have the clients of a task take newer statements about its bundles. The same again: no effect.

    Raises:
        TaskDiffers: The task has ended, or has no such bundle.
        Malformed: As in `check`; or a statement is older than the one before.
    """
    need_going(task)
    if not signed:
        raise Malformed("statements: found none; send one about each bundle to renew")
    positions = {bundle.id: i for i, bundle in enumerate(task.bundles)}
    bundles = list(task.bundles)
    for i, each in enumerate(signed):
        try:
            about = bytes(statements.read(each)[0].manifest)
            if about not in positions:
                raise TaskDiffers(f"task {task.name!r} has no bundle that statement {i} is about")
            bundles[positions[about]] = _renewed(federation, bundles[positions[about]], each)
        except (StatementRefused, Malformed) as error:
            raise Malformed(f"statements[{i}]: {error}") from error
    changed = [position for position, bundle in enumerate(bundles) if bundle != task.bundles[position]]
    if not changed:
        return
    for position in changed:
        row = (_bundles.task == task.id, _bundles.position == position)
        transaction.execute(update(schema.task_bundles).where(*row).values(statement=bundles[position].statement))
    audit.record(federation, transaction, by, "task renew", task.name)

    def follow() -> None:
        with task.moving:
            task.bundles = tuple(bundles)
            task.current_models, task.distinct_models = {}, {}

    transaction.after_commit(follow)


def notices(task: Task, now: float) -> list[str]:
    """A text for each statement about a bundle of a task that ends within `NOTICE_S` of `now`, or has ended."""
    return [
        f"the publisher's statement about bundle {bundle.id.hex()[:12]} "
        + (f"ends in {days:.0f} days" if days > 0 else f"ended {-days:.0f} days ago, so clients do not train with it")
        + ": sign the bundle anew with `fedlens sign`, then `fedlens task renew`"
        for bundle, days in _ending(task, now)
    ]


def note_ends(federation: Federation) -> None:
    """Note an event for each statement of which `notices` tells."""
    for task in list(federation.tasks.values()):
        for bundle, days in _ending(task, federation.clock.calendar()):
            events.note(Event.STATEMENT_ENDS, task=task.name, bundle=bundle.id, days=days)


def _ending(task: Task, now: float) -> Iterator[tuple[TaskBundle, float]]:
    """The bundles whose statements end soon, with the days that are left."""
    for bundle in () if task.ended else task.bundles:
        if bundle.statement:
            left = statements.read(bundle.statement)[0].not_after - now
            if left <= NOTICE_S:
                yield bundle, left / DAY_S


def _renewed(federation: Federation, bundle: TaskBundle, signed: bytes) -> TaskBundle:
    found = check(federation, bundle.id, signed)
    assert found is not None  # `renew` has read it
    if bundle.statement:
        before, _, _ = statements.read(bundle.statement)
        if (found.serial, found.floor, found.not_after) < (before.serial, before.floor, before.not_after):
            raise Malformed("it is older than the one that the task has")
    return replace(bundle, statement=signed)
