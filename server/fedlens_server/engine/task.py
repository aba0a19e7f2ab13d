"""Tasks as they stand, in memory; `Federation` in `view.py` holds them."""

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from math import ceil, inf
from statistics import fmean
from threading import Lock

from fedlens_proto import plans
from fedlens_proto.blob import Layout
from fedlens_proto.v1 import admin_pb2, check_in_pb2, manifest_pb2
from fedlens_server.engine.arrivals.presence import Presence
from fedlens_server.engine.cohorts.members import Participation, Round
from fedlens_server.engine.enrolled import Profile
from fedlens_server.planning.method import Method, Phase, State
from fedlens_server.planning.task_settings import TaskSettings
from fedlens_server.rules.robust import Bounds
from fedlens_server.store.columns import BlobSets
from fedlens_server.store.method_state import Key

ENDED = (admin_pb2.TASK_STATE_FINISHED, admin_pb2.TASK_STATE_STOPPED, admin_pb2.TASK_STATE_FAILED)


@dataclass(frozen=True)
class TaskBundle:
    """A bundle of a task, and the serialised `SignedStatement` about it; empty: nobody has signed it."""

    raw: bytes
    manifest: manifest_pb2.Manifest
    statement: bytes = b""

    @cached_property
    def id(self) -> bytes:
        """SHA-256 of the manifest."""
        return sha256(self.raw).digest()

    @cached_property
    def parts(self) -> frozenset[bytes]:
        """Digests of the parts."""
        return frozenset(part.sha256 for part in self.manifest.parts)

    @cached_property
    def buffers(self) -> frozenset[str]:
        """Names of the tensors that are not trained."""
        return frozenset(each.name for each in self.manifest.tensors if each.kind == manifest_pb2.TENSOR_KIND_BUFFER)

    @cached_property
    def formats(self) -> frozenset[manifest_pb2.ProgramFormat]:
        """The formats that every program of the bundle has."""
        each = [frozenset(file.format for file in program.files) for program in self.manifest.programs]
        return frozenset.intersection(*each)

    def runs_on(self, profile: Profile) -> bool:
        """Tell whether a client takes this model, and its engine loads every program of the bundle in one format."""
        able, manifest = profile.capabilities, self.manifest
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
    undecided: set[bytes] = field(default_factory=set)  # that answered while others were awaited

    def awaits(self, evaluator: bytes, now: float) -> bool:
        """Tell whether an evaluator was given this model and may still answer."""
        return evaluator not in self.evaluated_by and now < self.given_until.get(evaluator, 0.0)

    def awaits_others(self, evaluator: bytes, now: float) -> bool:
        """Tell whether another evaluator was given this model and may still answer."""
        return any(self.awaits(other, now) for other in list(self.given_until) if other != evaluator)

    def awaits_any(self, now: float) -> bool:
        """Tell whether an evaluator may still answer."""
        return any(self.awaits(evaluator, now) for evaluator in list(self.given_until))


@dataclass(frozen=True, kw_only=True)
class Release:
    """The state whose model clients predict with until the next release."""

    round: int
    committed: int  # rounds, with this one
    values: State


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
    paused: str = ""  # by whom or why; empty: it is not
    fault: str = ""  # the reason for which this server does not know the method and phases
    committed: int = 0
    abandoned: int = 0
    next_round: int = 1
    round: Round | None = None
    values: State = field(default_factory=State)  # the method's state
    # Held while the values, the round and the number of committed ones change together.
    moving: Lock = field(default_factory=Lock)
    state_blobs: dict[Key, bytes] = field(default_factory=dict)  # digest by entry of the state
    # Of copies of the shared state, by the round after which it was so: what a rollback and a release go back to.
    copies: dict[int, frozenset[bytes]] = field(default_factory=dict)
    released: Release | None = None  # with the setting `release` "manual"; None: none yet
    evaluation: GlobalModel | None = None
    older_evaluations: tuple[GlobalModel, ...] = ()  # that evaluators were given before, and have not answered yet
    # By client, of these values; made when asked.
    current_models: dict[bytes, check_in_pb2.CurrentModel] = field(default_factory=dict)
    distinct_models: dict[bytes, check_in_pb2.CurrentModel] = field(default_factory=dict)  # of them, by their bytes
    # Of clients that have asked for a place since the server's start.
    participations: dict[bytes, Participation] = field(default_factory=dict)
    # Clients that have taken part as often as they may, `max_participations`.
    exhausted: set[bytes] = field(default_factory=set)
    # Reports with each bundle, by its digest; not counted once there are `canary`.
    reports: Counter[bytes] = field(default_factory=Counter)
    # Most rounds that any client has taken part in, as of the last committed round.
    most_participations: int = 0
    # Phase and median norms of the last round that rules looked at.
    bounds: tuple[int, Bounds] | None = None
    # Mean seconds from place to report in each of the last rounds, for the pace of those that wait.
    report_s: deque[float] = field(default_factory=lambda: deque(maxlen=10))
    # Those that come for its places, and may get one before long.
    present: Presence = field(default_factory=Presence)
    # By phase and bundle, in the order of the uploads; made when asked, then the same for the life of the task.
    upload_layouts: dict[tuple[int, bytes], tuple[Layout, ...]] = field(default_factory=dict)

    @cached_property
    def consents(self) -> frozenset[str]:
        """Names of what clients upload, in any phase, that their owners have to allow."""
        asked = (plans.consents(phase.plan, self.bundles_of(i)[0].manifest) for i, phase in enumerate(self.phases))
        return frozenset[str]().union(*asked)

    @property
    def has_begun(self) -> bool:
        """True once the method has a state."""
        return self.next_round > 1 or bool(self.values.shared or self.values.clients)

    @property
    def ended(self) -> bool:
        """True once no round will follow."""
        return self.state in ENDED

    def is_over_for(self, client: bytes) -> bool:
        """Tell whether no round will follow for a client."""
        return self.ended or client in self.exhausted

    @property
    def suspended(self) -> bool:
        """True while nothing of the task changes, until a start of the server at which its method is known again."""
        return bool(self.fault) and not self.ended

    @property
    def shown_state(self) -> admin_pb2.TaskState:
        """The state as operators see it: until the task ends, suspended or paused instead of waiting or running."""
        if self.suspended:
            return admin_pb2.TASK_STATE_SUSPENDED
        return admin_pb2.TASK_STATE_PAUSED if self.paused and not self.ended else self.state

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
        return 1.0 if keeps or self.method.per_client or self.values.clients else 1.3

    @property
    def round_s(self) -> float | None:
        """The seconds that a round takes whose clients come by the pace and whose members all report; None: unknown.

        It is twice the mean time from place to report in the last rounds. How long these took would not do: where they
        waited for members that had left, clients would come later for it, and so the next rounds would take longer.
        """
        return 2 * fmean(self.report_s) if self.report_s else None

    @property
    def places(self) -> int:
        """The places of a round that has a goal."""
        return ceil((self.settings.goal or 0) * self.over_selection)

    def bounds_of(self, phase: int) -> Bounds | None:
        """The median norms of the last round, if that was of this phase, by its index."""
        return self.bounds[1] if self.bounds is not None and self.bounds[0] == phase else None

    def intake_of(self, phase: int) -> int | None:
        """The earlier phase, by its index, that a client without downloads in a phase can catch up with; None: none."""
        name = self.phases[phase].intake
        return next((i for i, earlier in enumerate(self.phases[:phase]) if earlier.name == name), None)

    def takes_everyone(self, phase: int) -> bool:
        """Tell whether a phase, by its index, takes every client that arrives in time, instead of a goal."""
        return self.phases[phase].cohort is None

    def over_at(self, current: Round) -> float:
        """When a round may end as it stands, by `Clock.elapsed`; infinite: an update or a place is needed first."""
        if current.closing or current.fault:
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

    def bundle_for(self, profile: Profile, phase: int) -> TaskBundle | None:
        """The first bundle for a phase, by its index, that clients of a profile can run."""
        return next((bundle for bundle in self.bundles_of(phase) if bundle.runs_on(profile)), None)

    def suits(self, profile: Profile) -> bool:
        """Tell whether clients of a profile can run a bundle in every phase, and send what they are asked for."""
        known = profile.suits.get(self.id)
        if known is None:
            known = profile.suits[self.id] = self._suits(profile)
        return known

    def may_train(self, profile: Profile) -> bool:
        """Tell whether clients of a profile are trainers that may take part."""
        return profile.is_trainer and not profile.revoked and self.suits(profile)

    def _suits(self, profile: Profile) -> bool:
        if self.fault or any(phase.plan.format > profile.capabilities.plan_format for phase in self.phases):
            return False
        if profile.is_trainer and not profile.sends(self.consents):
            return False
        return all(self.bundle_for(profile, phase) is not None for phase in range(len(self.phases)))
