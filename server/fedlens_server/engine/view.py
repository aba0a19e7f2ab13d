"""What the server knows, in memory: the view of the database that every request is answered from.

It is loaded when the server starts and changes only on the writing thread, after a commit. Other threads read it at
any time: they see the state before or after a commit of each object, never a promise that is not on disk.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

from fedlens_proto.blob import Layout
from fedlens_proto.v1 import admin_pb2, assignment_pb2, enrolment_pb2, manifest_pb2
from fedlens_server.clock import Clock
from fedlens_server.methods import Method, Phase, State, TaskPlan
from fedlens_server.planning.task_settings import TaskSettings
from fedlens_server.store import Store

ENDED = (admin_pb2.TASK_STATE_FINISHED, admin_pb2.TASK_STATE_STOPPED, admin_pb2.TASK_STATE_FAILED)
BlobSets = tuple[assignment_pb2.BlobSet, ...]


def fetchable(sets: BlobSets) -> set[bytes]:
    """Digests of the blobs that clients with these sets may fetch: also differences, and what those start from."""
    found = {item.sha256 for item in sets}
    for item in sets:
        if item.HasField("difference"):
            found |= {item.difference.sha256, item.difference.base}
    return found


class RoundKey(NamedTuple):
    """One round of one task."""

    task: int
    round: int


@dataclass(frozen=True)
class Change:
    """What a commit changed."""

    tasks: frozenset[int]  # check-ins concerning these tasks may now be answered differently; empty: none
    due: bool  # `due()` or `next_deadline()` may have changed


@dataclass(frozen=True, kw_only=True)
class Client:
    """An enrolled client."""

    id: bytes
    role: enrolment_pb2.ClientRole
    formats: frozenset[manifest_pb2.ProgramFormat]
    bundle_classes: frozenset[manifest_pb2.BundleClass]
    models: frozenset[str] = frozenset()  # of which it takes bundles; empty: of any
    revoked: bool = False


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
        """Formats in which every program of the bundle is there."""
        each = [frozenset(file.format for file in program.files) for program in self.manifest.programs]
        return frozenset.intersection(*each)

    @cached_property
    def bundle_class(self) -> manifest_pb2.BundleClass:
        """As the manifest says."""
        return self.manifest.bundle_class

    def runs_on(self, client: Client) -> bool:
        """Whether the client takes this model, and its engine loads every program of the bundle in one format."""
        takes_model = not client.models or self.manifest.model in client.models
        loads = self.bundle_class in client.bundle_classes and not self.formats.isdisjoint(client.formats)
        return takes_model and loads


@dataclass(slots=True)
class Member:
    """One client in the current round."""

    bundle: TaskBundle
    sets: BlobSets
    state: admin_pb2.MemberState = admin_pb2.MEMBER_STATE_PENDING
    reason: str = ""
    body_sha256: bytes | None = None
    num_examples: int = 0
    class_counts: tuple[int, ...] | None = None
    label_distribution: tuple[float, ...] | None = None
    blob: bytes | None = None  # digest


@dataclass(kw_only=True)
class Round:
    """A round that has not ended."""

    task: int
    number: int
    phase: int
    state: admin_pb2.RoundState
    deadline: float  # seconds since the epoch
    members: Mapping[bytes, Member]  # by client id, ascending
    sitting_out: frozenset[bytes]
    population: tuple[bytes, ...]  # eligible clients when it opened, ascending by id
    bytes_sent: int = 0
    pending: int = 0  # members that have neither reported nor failed nor left

    @property
    def key(self) -> RoundKey:
        """Its name."""
        return RoundKey(self.task, self.number)


@dataclass(frozen=True, kw_only=True)
class GlobalModel:
    """What evaluators evaluate: the global model of a committed round."""

    round: int
    phase: int
    sets: BlobSets
    answered: set[bytes] = field(default_factory=set)  # ids of evaluators


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
    committed: int = 0
    abandoned: int = 0
    next_round: int = 1
    round: Round | None = None
    values: State = field(default_factory=dict)  # the method's state
    kept_blobs: dict[str, bytes] = field(default_factory=dict)  # digest by entry of the state
    evaluation: GlobalModel | None = None
    eligible: set[bytes] = field(default_factory=set)  # ids of enrolled trainers that can run it
    current_sets: dict[bytes, BlobSets] = field(default_factory=dict)  # by client, of these values; made when asked
    # By phase and bundle; made when asked, then the same for the life of the task.
    upload_layouts: dict[tuple[int, bytes], Layout | None] = field(default_factory=dict)

    @property
    def plan(self) -> TaskPlan:
        """As methods see it."""
        return TaskPlan(settings=self.settings, manifests=tuple(bundle.manifest for bundle in self.bundles))

    @property
    def ended(self) -> bool:
        """Whether no round will follow."""
        return self.state in ENDED

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

    def bundles_of(self, phase: int) -> list[TaskBundle]:
        """The bundles for a phase, by its index: those that concatenate extractors, or the ordinary ones."""
        wanted = self.phases[phase].concatenated
        return [bundle for bundle in self.bundles if bool(bundle.manifest.concatenated) == wanted]

    def bundle_for(self, client: Client, phase: int) -> TaskBundle | None:
        """The first bundle for a phase, by its index, that the client can run."""
        return next((bundle for bundle in self.bundles_of(phase) if bundle.runs_on(client)), None)

    def suits(self, client: Client) -> bool:
        """Whether the client can run a bundle in every phase."""
        return all(self.bundle_for(client, phase) is not None for phase in range(len(self.phases)))


class Federation:
    """Clients and tasks, with what they are kept in."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Empty; see `loading.load`."""
        self.store = store
        self.clock = clock
        self.clients: dict[bytes, Client] = {}
        self.forgotten: set[bytes] = set()
        self.tasks: dict[int, Task] = {}
        self.aggregating: set[RoundKey] = set()
        self.retry_at: dict[RoundKey, float] = {}
        self.unreachable: set[bytes] = set()  # blobs that the last sweep found out of reach
        # Digest and size by task and recipe; see `weighted_sums.prepare`.
        self.weighted_sum_digests: dict[tuple[int, str], tuple[bytes, int]] = {}
        self._listeners: list[Callable[[Change], None]] = []
        self._changed: set[int] = set()
        self._due = False
        store.on_commit(self._publish)

    def note_eligible(self, task: Task, client: Client) -> None:
        """Have `task.eligible` say whether this client takes part."""
        takes_part = client.role == enrolment_pb2.CLIENT_ROLE_TRAINER and not client.revoked
        if takes_part and task.suits(client):
            task.eligible.add(client.id)
        else:
            task.eligible.discard(client.id)

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """See `Rounds.subscribe`."""
        self._listeners = [*self._listeners, listener]

        def end() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]

        return end

    def changed(self, tasks: Iterable[int] = (), *, due: bool = False) -> None:
        """Note on the writing thread what the running commit changes for those who wait."""
        self._changed.update(tasks)
        self._due = self._due or due

    def _publish(self) -> None:
        if not self._changed and not self._due:
            return
        change = Change(frozenset(self._changed), self._due)
        self._changed.clear()
        self._due = False
        for listener in self._listeners:
            listener(change)
