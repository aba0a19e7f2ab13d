"""A method as the server sees it: its phases as data, and three pure functions over named tensors.

HTTP, storage, the round engine and the clients know no method by name. A method says as data what clients do (the local
plan of each phase) and computes the server's state from their updates. It does no I/O and keeps nothing between calls:
everything that changes is in the state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlens_proto import plans
from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2
from fedlens_server.planning.bundle_settings import ByOptions, always
from fedlens_server.planning.options import Option, Options
from fedlens_server.planning.task_settings import SettingsError, TaskSettings

TensorSet = Mapping[str, Array]
GLOBAL = "global"
"""Name of the set that holds the global model, for evaluators and for those who use the model."""
OWN_CLUSTER = "cluster"
"""Name of the entry of a client that holds the number of its cluster, if its method groups clients."""
_PLAIN = always("cross_entropy")
Entry = Any  # TensorSet | Array (float32 or int64) | a value that JSON can hold


class NothingToAggregate(Exception):
    """No new state from these updates; the round is abandoned with this text as its reason."""


class BadState(Exception):
    """A state that cannot be stored; the text names the entry, what was found and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """The operator's settings of a task, and the manifests of its bundles, already checked.

    Attributes:
        settings: Of the task.
        manifests: Of its bundles.
        options: The value of each option of the method, set or default.

    Raises:
        SettingsError: All bundles concatenate extractors.
    """

    settings: TaskSettings
    manifests: tuple[manifest_pb2.Manifest, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Require an ordinary bundle."""
        if not self.ordinary:
            raise SettingsError("manifests", "only bundles that concatenate extractors", "an ordinary one at least")

    @property
    def ordinary(self) -> tuple[manifest_pb2.Manifest, ...]:
        """The bundles that do not concatenate extractors, at least one."""
        return tuple(manifest for manifest in self.manifests if not manifest.concatenated)

    @property
    def concatenated(self) -> tuple[manifest_pb2.Manifest, ...]:
        """The bundles for phases that concatenate extractors."""
        return tuple(manifest for manifest in self.manifests if manifest.concatenated)


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a method on the server, by name of the entry.

    A method gets a state whose mappings and arrays cannot be changed in place, and makes a new one. An entry that is
    the same object as before is not written again. A set of `update.values` itself as an entry keeps
    the uploaded blob, by its digest; a delta upload is reconstructed and stored in full.

    Attributes:
        shared: The entries that belong to no client.
        clients: The entries of each client by its id; the server deletes them when it forgets the client.
    """

    shared: Mapping[str, Entry] = field(default_factory=dict)
    clients: Mapping[bytes, Mapping[str, Entry]] = field(default_factory=dict)

    def with_shared(self, **entries: Entry) -> "State":
        """The state with these shared entries added or replaced."""
        return replace(self, shared={**self.shared, **entries})

    def with_clients(self, entries: Mapping[bytes, Mapping[str, Entry]]) -> "State":
        """The state with these entries of clients added or replaced; their other entries stay."""
        merged = {client: {**self.clients.get(client, {}), **own} for client, own in entries.items()}
        return replace(self, clients={**self.clients, **merged})

    def of(self, client: bytes) -> Mapping[str, Entry]:
        """The entries of a client; empty if it has none."""
        return self.clients.get(client, {})


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Consecutive rounds with the same local plan for all clients.

    Attributes:
        name: The phase's name in messages and results.
        rounds: Committed rounds.
        cohort: Clients per round; None: all.
        plan: The local plan of its trainers.
        model: The rules by which a client puts together the model to predict with, from client state and downloads;
            None: those of the plan's first assembled weights.
        intake: Name of an earlier phase whose local plan a client carries out that comes too late for it and so sits
            this one out; `Method.admit` then takes it in. Empty, or a task that draws its members: it sits it out.
    """

    name: str
    rounds: int
    cohort: int | None
    plan: assignment_pb2.LocalPlan
    model: tuple[assignment_pb2.Rule, ...] | None = None
    intake: str = ""

    @property
    def model_rules(self) -> tuple[assignment_pb2.Rule, ...]:
        """The rules of the model to predict with; empty: there is none in this phase."""
        return tuple(plans.start_rules(self.plan)) if self.model is None else self.model

    def takes(self, manifest: manifest_pb2.Manifest) -> bool:
        """Tell whether clients run this bundle in the phase."""
        return len(self.plan.extractors) == manifest.concatenated


class Norms(NamedTuple):
    """The L2 norms of an upload, over its float tensors.

    Attributes:
        trained: Of the change of trained tensors from what the client was sent.
        buffers: Of the change of buffers.
        own: Of tables, and of the weights that start from nothing that the server sent, themselves.
        nearest: Name of the download that the tensors start from of which the local plan does not say it, because the
            client chooses; empty: there are none.
    """

    trained: float
    buffers: float
    own: float
    nearest: str = ""

    @property
    def total(self) -> float:
        """The norm of all of them as one vector."""
        return sqrt(self.trained**2 + self.buffers**2 + self.own**2)


@dataclass(frozen=True, kw_only=True)
class Update:
    """The results of one client in a round.

    Attributes:
        client: Id, 32 bytes.
        num_examples: Photos trained on in this round.
        values: The uploaded sets by name of the upload, read lazily, with differences added to their base.
        sent: The client's downloads by name, decoded as the client decoded them, read lazily. A set that several
            clients downloaded is one object.
        evaluations: By label.
        class_counts: Photos of each class; None: not in the local plan.
        label_distribution: Noisy share of each class; None: not in the local plan.
        norms: Of the uploaded weights, or of the tables of a client that uploads no weights; None: there is neither, or
            no rule of the task needs them.
        bases: By tensor of the uploaded weights the download that it starts from, as far as the server knows it.
    """

    client: bytes
    num_examples: int
    values: Mapping[str, TensorSet] = field(default_factory=dict)
    sent: Mapping[str, TensorSet] = field(default_factory=dict)
    evaluations: Mapping[str, update_pb2.EvaluationSums] = field(default_factory=dict)
    class_counts: tuple[int, ...] | None = None
    label_distribution: tuple[float, ...] | None = None
    norms: Norms | None = None
    bases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Inputs of a method's functions beside state and updates; `the bundle` is the first one that the phase takes.

    Attributes:
        generator: Source of random numbers, from the task's seed and the round.
        population: Ids of all enrolled trainers that can run the task, ascending.
        initial: The initial weights of the bundle.
        infer: Logits, float32 [N, classes], of photos, float32 [N, 3, H, W] in 0..1, with the given weights in the
            bundle, which must have ONNX (`bundles.need_onnx`). None: no inference.
        photo_shape: Of one photo in the bundle.
    """

    generator: np.random.Generator
    population: tuple[bytes, ...]
    initial: TensorSet
    infer: Callable[[TensorSet, NDArray[np.float32]], NDArray[np.float32]] | None = None
    photo_shape: tuple[int, int, int] = (3, 0, 0)


Begin = Callable[[Phase, State, Tools], State]
Download = Callable[[Phase, State, bytes | None], Mapping[str, TensorSet] | None]
Aggregate = Callable[[Phase, State, Sequence[Update], Tools], State]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method made for one task. Its results depend on the arguments alone.

    Attributes:
        phases: In order.
        begin: The state at the start of a phase; the given one is empty before the first phase.
        download: The sets for a client by the names in its local plan, all but `initial` and those only in optional
            references; None: the client sits the phase out. With None as the client, the sets for evaluators, `global`
            being the global model; None: there is no global model. Return sets of the state itself where possible: the
            server stores others only for members of a round.
        aggregate: The state after a round. It depends on the set of updates, not on their order; the server passes
            them ascending by client id. Raises `NothingToAggregate` if they give no new state.
        admit: The state with clients taken in that have caught up with the intake of a phase, given their updates;
            called before `aggregate`. None: no phase has an intake.
        per_client: Whether single clients have a state, here or on their phones, that goes with the shared one: then
            neither can be taken back alone, and no client trains for nothing.
        notice: What the task's owner should know of it, shown with the task; empty: nothing.
    """

    phases: tuple[Phase, ...]
    begin: Begin
    download: Download
    aggregate: Aggregate
    admit: Aggregate | None = None
    per_client: bool = False
    notice: str = ""


class Shared(IntEnum):
    """What the clients of a method share, on which central privacy and some rules rest; each has those before it too.

    MODEL: All are sent one model and upload it as trained. MEAN: one mean of these is all that aggregation takes from
    them. ONLY_MEAN: this mean is the new model, and nothing else is kept on the server.
    """

    NOTHING = 0
    MODEL = 1
    MEAN = 2
    ONLY_MEAN = 3


@dataclass(frozen=True)
class MethodDefinition:
    """A method before there is a task: the object that an entry point in group `fedlens.methods` names.

    Attributes:
        for_task: Makes the method for a task, or raises `SettingsError`.
        bundle_settings: The settings with which a study exports bundles for it, by the options of the task.
        options: Its options by name; a task that sets another is refused.
        shares: What its clients share.
        middles: True if `aggregate` itself carries out `median` and `trimmed_mean` on tables (`TaskSettings.left_out`).
    """

    for_task: Callable[[TaskPlan], Method]
    bundle_settings: ByOptions = _PLAIN
    options: Options = field(default_factory=dict)
    shares: Shared = Shared.NOTHING
    middles: bool = False

    def __post_init__(self) -> None:
        """Require that options are options."""
        for name, option in self.options.items():
            if not isinstance(option, Option):
                raise TypeError(f"options: found {option!r} for {name!r}, must be an Option, as options.number(0, 1)")


def span(tensors: TensorSet, name: str, start: int, stop: int, buffer: Array | None = None) -> Array:
    """Elements `start` to `stop` of a tensor in row-major order; only these are read from a stored tensor.

    Args:
        tensors: The set that holds the tensor.
        name: The tensor's name.
        start: First element.
        stop: One after the last element.
        buffer: float32 or int64 with room for the elements; may be overwritten and returned.
    """
    read: Callable[[str, int, int, Array | None], Array] | None = getattr(tensors, "span", None)
    if read is not None:
        return read(name, start, stop, buffer)
    return tensors[name].reshape(-1)[start:stop]
