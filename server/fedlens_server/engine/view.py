"""The view: all that requests are answered from, in memory, as the database holds it.

It changes only on the writing thread, after a commit. Other threads read it at any time: they see each object before or
after a commit, never a promise that is not on disk.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import Concatenate, ParamSpec, TypeVar

from fedlens_proto.programs.statements import Publisher
from fedlens_proto.v1 import admin_pb2
from fedlens_server.clock import Clock
from fedlens_server.engine.arrivals.answers import Answers
from fedlens_server.engine.arrivals.presence import StoredPresence
from fedlens_server.engine.cohorts.members import WRITE_MEMBER, Member, Round, RoundKey, member_row
from fedlens_server.engine.enrolled import Client, Enrolled
from fedlens_server.engine.operators.access import Operator, TokenGrant
from fedlens_server.engine.task import Task
from fedlens_server.errors import Forbidden, Unauthorised, Unavailable, Unknown
from fedlens_server.store import Store, Transaction
from fedlens_server.store.objects import AT_A_TIME
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event
from fedlens_server.telemetry.timings import Timings

P = ParamSpec("P")
T = TypeVar("T")
_NAMES = {number: name.removeprefix("MEMBER_STATE_").lower() for name, number in admin_pb2.MemberState.items()}
_EVENTS = {admin_pb2.MEMBER_STATE_QUARANTINED: Event.QUARANTINED, admin_pb2.MEMBER_STATE_FAILED: Event.FAILED}


@dataclass(frozen=True)
class Change:
    """A commit's effect on those who wait."""

    tasks: frozenset[int] = frozenset()  # all of their clients may now be told something else
    models: frozenset[int] = frozenset()  # tasks whose evaluators may
    clients: frozenset[bytes] = frozenset()  # these may
    due: bool = False  # `due()` or `next_deadline()` may have changed


class Federation:
    """Clients and tasks, with the store and the clock of their server; `recovery.load` makes one."""

    def __init__(
        self, store: Store, clock: Clock, *, method_modules: bool, publishers: Sequence[Publisher] = ()
    ) -> None:
        """Without clients and tasks; arguments as in `recovery.load`."""
        self.store = store
        self.clock = clock
        self.generator = random.Random()  # of places, and of pauses before clients ask again
        self.method_modules = method_modules
        self.publishers = publishers
        self.clients = Enrolled()
        self.forgotten: set[bytes] = set()  # of those, the ones that a round or a task's state may still name
        self.tasks: dict[int, Task] = {}
        self.deleting: set[int] = set()  # tasks of which rows are left
        self.aggregating: set[RoundKey] = set()
        self.retry_at: dict[RoundKey, float] = {}
        self.unreachable: set[bytes] = set()  # blobs, at the last sweep
        self.counting = threading.Lock()  # of bytes sent and aggregations
        self.backing_up = threading.Lock()  # held while a backup is made
        self.norms = ThreadPoolExecutor(1, thread_name_prefix="fedlens-norm")
        self.storing = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="fedlens-storing")
        self.presence = StoredPresence()
        self.answers = Answers()
        self.member_events: Counter[tuple[int, str]] = Counter()  # by task, since the start of the server
        self.aggregations = Timings()
        self.grants: dict[str, TokenGrant] = {}  # by the SHA-256 of their tokens, in hexadecimal, as are
        self.operators: dict[str, Operator] = {}
        self.enrolments_due: dict[str, float] = {}  # of the last minute, by `Clock.elapsed`; see `clients.enrol`
        self._listeners: list[Callable[[Change], None]] = []
        self._changes: list[Change] = []  # of the running commit
        store.on_commit(self._publish)

    def close(self) -> None:
        """Finish the norms that are being computed; call it before the store's `close`."""
        self.storing.shutdown(wait=False, cancel_futures=True)
        self.norms.shutdown()

    def authenticate(self, client: bytes) -> Client:
        """An enrolled client.

        Raises:
            Unauthorised: No client has enrolled with this id, or it was forgotten.
            Forbidden: The client is banned.
        """
        found = self.clients.get(client)
        if found is None:
            raise Unauthorised("no client is enrolled with this credential; enrol first")
        if found.profile.revoked:
            raise Forbidden("this client is banned by an operator")
        return found

    def task(self, task_id: int) -> Task:
        """A task; raises `Unknown` if there is none, and `Unavailable` while it is suspended."""
        found = self.tasks.get(task_id)
        if found is None:
            raise Unknown(f"there is no task {task_id}")
        if found.suspended:
            raise Unavailable(f"task {task_id} is suspended until its method is installed on the server again")
        return found

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` after each commit that matters, on the writing thread; returns a function that ends it.

        It must return quickly (`loop.call_soon_threadsafe`) and not raise.
        """
        self._listeners = [*self._listeners, listener]

        def end() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]

        return end

    def changed(
        self,
        tasks: Iterable[int] = (),
        *,
        models: Iterable[int] = (),
        clients: Iterable[bytes] = (),
        due: bool = False,
    ) -> None:
        """Note on the writing thread the effect of the running commit on those who wait, as in `Change`."""
        self._changes.append(Change(frozenset(tasks), frozenset(models), frozenset(clients), due))

    def _publish(self) -> None:
        changes, self._changes = self._changes, []
        change = Change(
            frozenset().union(*(each.tasks for each in changes)),
            frozenset().union(*(each.models for each in changes)),
            frozenset().union(*(each.clients for each in changes)),
            any(each.due for each in changes),
        )
        if change != Change():
            self.tell(change)

    def tell(self, change: Change) -> None:
        """Tell those who wait at once of a change that no commit brings."""
        for listener in self._listeners:
            listener(change)


def operation(
    key: Callable[..., Hashable] | None = None,
) -> Callable[[Callable[Concatenate[Federation, Transaction, P], T]], Callable[Concatenate[Federation, P], Future[T]]]:
    """Give a function a transaction of its own on the writing thread; callers leave the transaction out.

    The future is resolved once the change is on disk, and holds the `ServerError`s that clients and operators cause.

    Args:
        key: Gives, of the other arguments, what the function reads and changes of the view; None: everything.
    """

    def decorate(
        run: Callable[Concatenate[Federation, Transaction, P], T],
    ) -> Callable[Concatenate[Federation, P], Future[T]]:
        def submit(federation: Federation, /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
            keys = None if key is None else [key(*args, **kwargs)]
            return federation.store.submit(lambda transaction: run(federation, transaction, *args, **kwargs), keys)

        return update_wrapper(submit, run)

    return decorate


def write_member(
    federation: Federation, transaction: Transaction, current: Round, client: bytes, member: Member
) -> None:
    """Write a member that is pending no more to its row and, after the commit, to the view."""
    transaction.later(WRITE_MEMBER, member_row(current, client, member))

    def follow() -> None:
        if member.phase == current.phase:
            current.counts[current.members[client].state] -= 1
            current.counts[member.state] += 1
        if current.held is not None:
            since = current.held.since(client)
            if since is not None and member.state == admin_pb2.MEMBER_STATE_REPORTED:
                current.report_s.append(federation.clock.elapsed() - since)
            current.held.release(client)
        current.members[client] = replace(member, evaluations="[]")
        federation.member_events[current.task, _NAMES[member.state]] += 1
        if event := _EVENTS.get(member.state):
            task = federation.tasks[current.task]
            events.note(event, task=task.name, round=current.number, client=client, reason=member.reason)
        has_left = member.state == admin_pb2.MEMBER_STATE_LEFT
        by_arrival = federation.tasks[current.task].settings.by_arrival
        federation.changed(due=has_left or by_arrival or current.pending == 0)

    transaction.after_commit(follow)
