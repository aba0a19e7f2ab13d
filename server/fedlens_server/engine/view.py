"""The view: all that requests are answered from, in memory, as the database holds it.

It changes only on the writing thread, after a commit. Other threads read it at any time: they see each object before or
after a commit, never a promise that is not on disk.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, update_wrapper
from hashlib import sha256
from math import ceil, inf
from typing import Concatenate, ParamSpec, TypeVar

from fedlens_proto import plans
from fedlens_proto.blob import Layout
from fedlens_proto.v1 import admin_pb2, check_in_pb2, enrolment_pb2, manifest_pb2
from fedlens_server.clock import Clock
from fedlens_server.engine.arrivals.presence import Presence
from fedlens_server.engine.cohorts.members import WRITE_MEMBER, Member, Participation, Round, RoundKey, member_row
from fedlens_server.errors import Forbidden, Unauthorised, Unavailable, Unknown
from fedlens_server.planning.method import Method, Phase, State
from fedlens_server.planning.task_settings import TaskSettings
from fedlens_server.store import Store, Transaction
from fedlens_server.store.columns import BlobSets
from fedlens_server.store.method_state import Key

ENDED = (admin_pb2.TASK_STATE_FINISHED, admin_pb2.TASK_STATE_STOPPED, admin_pb2.TASK_STATE_FAILED)
ANY_TABLE = "*"
"""As one of a client's tables: it sends any."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Change:
    """A commit's effect on those who wait."""

    tasks: frozenset[int] = frozenset()  # all of their clients may now be told something else
    models: frozenset[int] = frozenset()  # tasks whose evaluators may
    clients: frozenset[bytes] = frozenset()  # these may
    due: bool = False  # `due()` or `next_deadline()` may have changed


@dataclass(frozen=True, kw_only=True)
class Client:
    """An enrolled client."""

    id: bytes
    role: enrolment_pb2.ClientRole
    capabilities: enrolment_pb2.Capabilities
    revoked: bool = False

    def sends(self, tables: Collection[str]) -> bool:
        """Tell whether the client lets all these tables leave the device."""
        return ANY_TABLE in self.capabilities.tables or all(name in self.capabilities.tables for name in tables)


@dataclass(frozen=True)
class TaskBundle:
    """A bundle of a task."""

    raw: bytes
    manifest: manifest_pb2.Manifest

    @cached_property
    def id(self) -> bytes:
        """SHA-256 of the manifest."""
        return sha256(self.raw).digest()

    @cached_property
    def parts(self) -> frozenset[bytes]:
        """Digests of the parts."""
        return frozenset(part.sha256 for part in self.manifest.parts)

    @cached_property
    def formats(self) -> frozenset[manifest_pb2.ProgramFormat]:
        """The formats that every program of the bundle has."""
        each = [frozenset(file.format for file in program.files) for program in self.manifest.programs]
        return frozenset.intersection(*each)

    def runs_on(self, client: Client) -> bool:
        """Tell whether the client takes this model, and its engine loads every program of the bundle in one format."""
        able, manifest = client.capabilities, self.manifest
        takes_model = not able.models or manifest.model in able.models
        loads = manifest.bundle_class in able.bundle_classes and not self.formats.isdisjoint(able.formats)
        return takes_model and loads


@dataclass(frozen=True, kw_only=True)
class GlobalModel:
    """The global model of a committed round, for evaluators."""

    round: int
    phase: int
    sets: BlobSets
    evaluated_by: set[bytes] = field(default_factory=set)  # ids of evaluators
    given_until: dict[bytes, float] = field(default_factory=dict)  # by evaluator, by `Clock.elapsed`

    def awaits(self, evaluator: bytes, now: float) -> bool:
        """Tell whether an evaluator was given this model and may still answer."""
        return evaluator not in self.evaluated_by and now < self.given_until.get(evaluator, 0.0)

    def awaits_any(self, now: float) -> bool:
        """Tell whether an evaluator may still answer."""
        return any(self.awaits(evaluator, now) for evaluator in list(self.given_until))


@dataclass(kw_only=True)
class Task:
    """A task and where it stands."""

    id: int
    name: str
    content: bytes
    settings: TaskSettings
    seed: bytes
    bundles: tuple[TaskBundle, ...]
    method: Method
    phases: tuple[Phase, ...]  # the method's, and one for personal evaluation where that is asked for
    method_phases: int
    state: admin_pb2.TaskState
    reason: str = ""
    fault: str = ""  # the reason for which this server does not know the method and phases
    committed: int = 0
    abandoned: int = 0
    next_round: int = 1
    round: Round | None = None
    values: State = field(default_factory=State)  # the method's state
    state_blobs: dict[Key, bytes] = field(default_factory=dict)  # digest by entry of the state
    evaluation: GlobalModel | None = None
    older_evaluations: tuple[GlobalModel, ...] = ()  # that evaluators were given before, and have not answered yet
    eligible: set[bytes] = field(default_factory=set)  # ids of enrolled trainers that can run it
    # By client, of these values; made when asked.
    current_models: dict[bytes, check_in_pb2.CurrentModel] = field(default_factory=dict)
    # Of clients that have asked for a place since the server's start.
    participations: dict[bytes, Participation] = field(default_factory=dict)
    # Seconds that the last rounds took from the first place to the end, for the pace of those that wait.
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=10))
    # By phase and bundle, in the order of the uploads; made when asked, then the same for the life of the task.
    upload_layouts: dict[tuple[int, bytes], tuple[Layout, ...]] = field(default_factory=dict)

    @cached_property
    def tables(self) -> frozenset[str]:
        """Names of the tables that clients upload, in any phase."""
        uploaded = (
            plans.tables(phase.plan, self.bundles_of(i)[0].manifest).values() for i, phase in enumerate(self.phases)
        )
        return frozenset(value.makes for values in uploaded for value in values)

    @property
    def has_begun(self) -> bool:
        """True once the method has a state."""
        return self.next_round > 1 or bool(self.values.shared or self.values.clients)

    @property
    def ended(self) -> bool:
        """True once no round will follow."""
        return self.state in ENDED

    @property
    def suspended(self) -> bool:
        """True while nothing of the task changes, until a start of the server at which its method is known again."""
        return bool(self.fault) and not self.ended

    @property
    def rounds_total(self) -> int:
        """Rounds to commit in all."""
        return sum(phase.rounds for phase in self.phases)

    def phase_of(self, committed: int) -> int:
        """Index of the phase that follows so many committed rounds; the last one at the end."""
        left = committed
        for i, phase in enumerate(self.phases):
            if left < phase.rounds:
                return i
            left -= phase.rounds
        return len(self.phases) - 1

    def method_phase(self, index: int) -> Phase:
        """The phase as the method knows it: personal evaluation looks to it like its last one."""
        return self.phases[min(index, self.method_phases - 1)]

    @property
    def over_selection(self) -> float:
        """The number of clients that are asked for each update that is wanted, at least 1.

        Work is thrown away on purpose, so not where a client needs the result of its own.
        """
        if self.settings.over_selection is not None:
            return self.settings.over_selection
        keeps = any(phase.plan.keeps for phase in self.phases)
        return 1.0 if keeps or self.values.clients else 1.3

    @property
    def places(self) -> int:
        """The places of a round that has a goal."""
        return ceil((self.settings.goal or 0) * self.over_selection)

    def intake_of(self, phase: int) -> int | None:
        """The earlier phase, by its index, that a client without downloads in a phase can catch up with; None: none."""
        name = self.phases[phase].intake
        return next((i for i, earlier in enumerate(self.phases[:phase]) if earlier.name == name), None)

    def takes_everyone(self, phase: int) -> bool:
        """Tell whether a phase, by its index, takes every client that arrives in time, instead of a goal."""
        return self.phases[phase].cohort is None

    def over_at(self, current: Round) -> float:
        """When a round may end as it stands, by `Clock.elapsed`; infinite: an update or a place is needed first."""
        if current.closing:
            return 0.0
        if not self.settings.by_arrival:
            return current.deadline if current.pending else 0.0
        settings = self.settings
        enough = not self.takes_everyone(current.phase) and current.reported >= (settings.goal or 0)
        broken = current.failures >= (settings.max_failures or max(2 * self.places, 10))
        if enough or broken:
            return 0.0
        return current.deadline if current.reported >= settings.min_reports else inf

    def awaited_evaluations(self, now: float) -> tuple[GlobalModel, ...]:
        """The models that evaluators were given and may still answer, ascending by round."""
        models = self.older_evaluations if self.evaluation is None else (*self.older_evaluations, self.evaluation)
        return tuple(model for model in models if model.awaits_any(now))

    def bundle(self, digest: bytes) -> TaskBundle:
        """The bundle of this digest."""
        return next(bundle for bundle in self.bundles if bundle.id == digest)

    def bundles_of(self, phase: int) -> list[TaskBundle]:
        """The bundles for a phase, by its index."""
        return [bundle for bundle in self.bundles if self.phases[phase].takes(bundle.manifest)]

    def bundle_for(self, client: Client, phase: int) -> TaskBundle | None:
        """The first bundle for a phase, by its index, that the client can run."""
        return next((bundle for bundle in self.bundles_of(phase) if bundle.runs_on(client)), None)

    def suits(self, client: Client) -> bool:
        """Tell whether the client can run a bundle in every phase, and sends what it is asked for."""
        if self.fault or any(phase.plan.format > client.capabilities.plan_format for phase in self.phases):
            return False
        if client.role == enrolment_pb2.CLIENT_ROLE_TRAINER and not client.sends(self.tables):
            return False
        return all(self.bundle_for(client, phase) is not None for phase in range(len(self.phases)))


class Federation:
    """Clients and tasks, with the store and the clock of their server; `recovery.load` makes one."""

    def __init__(self, store: Store, clock: Clock, *, method_modules: bool) -> None:
        """Without clients and tasks; `method_modules`: operators may name methods as `module:NAME`."""
        self.store = store
        self.clock = clock
        self.method_modules = method_modules
        self.clients: dict[bytes, Client] = {}
        self.forgotten: set[bytes] = set()
        self.tasks: dict[int, Task] = {}
        self.aggregating: set[RoundKey] = set()
        self.retry_at: dict[RoundKey, float] = {}
        self.unreachable: set[bytes] = set()  # blobs, at the last sweep
        self.counting = threading.Lock()  # of bytes sent
        self.norms = ThreadPoolExecutor(1, thread_name_prefix="fedlens-norm")
        self.presence = Presence()
        self._listeners: list[Callable[[Change], None]] = []
        self._changes: list[Change] = []  # of the running commit
        store.on_commit(self._publish)

    def close(self) -> None:
        """Finish the norms that are being computed; call it before the store's `close`."""
        self.norms.shutdown()

    def authenticate(self, client: bytes) -> Client:
        """An enrolled client.

        Raises:
            Unauthorised: No client has enrolled with this id, or it was forgotten.
            Forbidden: The client was revoked.
        """
        found = self.clients.get(client)
        if found is None:
            raise Unauthorised("no client is enrolled with this credential; enrol first")
        if found.revoked:
            raise Forbidden("this client was revoked by the operator")
        return found

    def task(self, task_id: int) -> Task:
        """A task; raises `Unknown` if there is none, and `Unavailable` while it is suspended."""
        found = self.tasks.get(task_id)
        if found is None:
            raise Unknown(f"there is no task {task_id}")
        if found.suspended:
            raise Unavailable(f"task {task_id} is suspended until its method is installed on the server again")
        return found

    def note_eligible(self, task: Task, client: Client) -> None:
        """Bring `task.eligible` up to date for one client."""
        takes_part = client.role == enrolment_pb2.CLIENT_ROLE_TRAINER and not client.revoked
        if takes_part and task.suits(client):
            task.eligible.add(client.id)
        else:
            task.eligible.discard(client.id)

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
        if change == Change():
            return
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
        current.members[client] = replace(member, evaluations="[]")
        has_left = member.state == admin_pb2.MEMBER_STATE_LEFT
        by_arrival = federation.tasks[current.task].settings.by_arrival
        federation.changed(due=has_left or by_arrival or current.pending == 0)

    transaction.after_commit(follow)
