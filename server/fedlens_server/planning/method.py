"""What a method is to the server: a small object of plain functions over named tensors.

HTTP, storage, the round engine and every client know no method by name. A method says what clients do as data (the
local plan of a phase) and how the server's state follows from their updates; it does no I/O and keeps nothing in
itself: its settings are its frozen fields, all else is in the state.

The state maps names to tensor sets, arrays (float32 or int64), and plain values that JSON can hold. Entries under
`clients/<id in hex>/` belong to one client and go when it is forgotten. An entry that is handed on as the same object
is not written again, and an uploaded blob enters the state by digest when `update.tensors` itself is put there, unless
it was a difference, of which the tensors it stands for are written in full.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2, manifest_pb2
from fedlens_server.planning.task_settings import TaskSettings

TensorSet = Mapping[str, Array]
State = Mapping[str, Any]  # name -> TensorSet | Array | int | float | str | list


class NothingToAggregate(Exception):
    """These updates give no new state; the round is abandoned, with this text as the reason."""


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What a task is made of: the operator's settings and the bundles, whose manifests have been checked."""

    settings: TaskSettings
    manifests: tuple[manifest_pb2.Manifest, ...]

    @property
    def ordinary(self) -> tuple[manifest_pb2.Manifest, ...]:
        """The bundles that do not concatenate extractors; one at least."""
        return tuple(manifest for manifest in self.manifests if not manifest.concatenated)

    @property
    def concatenated(self) -> tuple[manifest_pb2.Manifest, ...]:
        """The bundles for phases that concatenate extractors."""
        return tuple(manifest for manifest in self.manifests if manifest.concatenated)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of rounds in which every client is told the same."""

    name: str
    rounds: int  # that must commit
    cohort: int | None  # clients a round; None: all
    local_plan: assignment_pb2.LocalPlan
    concatenated: bool = False  # uses the task's bundles that concatenate extractors, instead of the ordinary ones


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one client sent in a round."""

    client: bytes  # id, 32 bytes
    num_examples: int  # photos trained on in this round
    tensors: TensorSet  # empty where the local plan uploads nothing; read lazily
    # Its downloads of this round by name, decoded as the client decoded them; read lazily. What was sent alike to
    # several clients is one object.
    sent: Mapping[str, TensorSet] = field(default_factory=dict)
    class_counts: tuple[int, ...] | None = None  # None: not asked for
    label_distribution: tuple[float, ...] | None = None  # noisy share of each class; None: not asked for


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a method may use beside its arguments."""

    generator: np.random.Generator
    population: tuple[bytes, ...]  # ids of all enrolled trainers that can run the task, ascending
    initial: TensorSet  # the initial weights of the task's first ordinary bundle
    initial_concatenated: TensorSet | None = None  # of its first one that concatenates extractors; None: it has none
    # Logits, float32 [N, classes], of photos, float32 [N, 3, H, W] in 0..1, with these weights in the first ordinary
    # bundle, which must have ONNX (`fitting.need_onnx`). None: there is no inference here.
    infer: Callable[[TensorSet, NDArray[np.float32]], NDArray[np.float32]] | None = None
    photo_shape: tuple[int, int, int] = (3, 0, 0)  # of one photo of that bundle


class Method(Protocol):
    """Said once here for every method. All calls must be functions of their arguments alone."""

    def phases(self, task: TaskPlan) -> list[Phase]:
        """The task's phases in order; the same each time it is asked."""
        ...

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The state with which a phase starts; `state` is empty before the first."""
        ...

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The sets that a client gets, by the names its local plan uses; None: it sits this phase out.

        With `client` None: what an evaluator gets, the global model; None: there is no such thing. Should give sets of
        the state itself; others are stored for members of a round only.
        """
        ...

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The new state, which depends on the set of updates alone; they come sorted by client id.

        Raises:
            NothingToAggregate: These updates give none.
        """
        ...


def span(tensors: TensorSet, name: str, start: int, stop: int, buffer: Array | None = None) -> Array:
    """Elements `start` to `stop` of a tensor in row-major order; of a stored one no more than these are read.

    Args:
        tensors: Where from.
        name: Of the tensor.
        start: First element.
        stop: Behind the last one.
        buffer: May be overwritten with the elements and be what is returned; float32 or int64, with room for them.
    """
    read = getattr(tensors, "span", None)
    if read is not None:
        found: Array = read(name, start, stop, buffer)
        return found
    return tensors[name].reshape(-1)[start:stop]
