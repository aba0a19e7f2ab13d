"""A method as the server sees it: its phases as data, and three pure functions over named tensors.

HTTP, storage, the round engine and the clients know no method by name. A method says as data what clients do (the local
plan of each phase) and computes the server's state from their updates. It does no I/O and keeps nothing between calls:
everything that changes is in the state.

The state maps names to tensor sets, arrays (float32 or int64) and plain values that JSON can hold. Entries under
`clients/<id in hex>/` belong to one client and are deleted when that client is forgotten. An entry that is the same
object as before is not written again. `update.tensors` itself as an entry keeps the uploaded blob, by its digest; a
delta upload is reconstructed and stored in full.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2, manifest_pb2
from fedlens_server.planning.task_settings import TaskSettings

TensorSet = Mapping[str, Array]
MethodState = Mapping[str, Any]  # name -> TensorSet | Array | int | float | str | list


class NothingToAggregate(Exception):
    """No new state from these updates; the round is abandoned with this text as its reason."""


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """The operator's settings of a task, and the manifests of its bundles, already checked."""

    settings: TaskSettings
    manifests: tuple[manifest_pb2.Manifest, ...]

    @property
    def ordinary(self) -> tuple[manifest_pb2.Manifest, ...]:
        """The bundles that do not concatenate extractors, at least one."""
        return tuple(manifest for manifest in self.manifests if not manifest.concatenated)

    @property
    def concatenated(self) -> tuple[manifest_pb2.Manifest, ...]:
        """The bundles for phases that concatenate extractors."""
        return tuple(manifest for manifest in self.manifests if manifest.concatenated)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Consecutive rounds with the same local plan for all clients."""

    name: str
    rounds: int  # committed rounds
    cohort: int | None  # clients per round; None: all
    local_plan: assignment_pb2.LocalPlan
    concatenated: bool = False  # use the bundles that concatenate extractors instead of the ordinary ones

    def takes(self, manifest: manifest_pb2.Manifest) -> bool:
        """Tell whether clients run this bundle in the phase."""
        return bool(manifest.concatenated) == self.concatenated


@dataclass(frozen=True, kw_only=True)
class Update:
    """The upload of one client in a round."""

    client: bytes  # id, 32 bytes
    num_examples: int  # photos trained on in this round
    tensors: TensorSet  # empty if the local plan uploads nothing; read lazily
    # The client's downloads of this round by name, decoded as the client decoded them; read lazily. A set that several
    # clients downloaded is one object.
    sent: Mapping[str, TensorSet] = field(default_factory=dict)
    class_counts: tuple[int, ...] | None = None  # None: not in the local plan
    label_distribution: tuple[float, ...] | None = None  # noisy, by class; None: not in the local plan


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Inputs of a method's functions beside state and updates."""

    generator: np.random.Generator
    population: tuple[bytes, ...]  # ids of all enrolled trainers that can run the task, ascending
    initial: TensorSet  # the initial weights of the task's first ordinary bundle
    initial_concatenated: TensorSet | None = None  # of the first bundle that concatenates extractors, if any
    # Logits, float32 [N, classes], of photos, float32 [N, 3, H, W] in 0..1, with the given weights in the first
    # ordinary bundle, which must have ONNX (`bundles.need_onnx`). None: no inference.
    infer: Callable[[TensorSet, NDArray[np.float32]], NDArray[np.float32]] | None = None
    photo_shape: tuple[int, int, int] = (3, 0, 0)  # of one photo in that bundle


Aggregate = Callable[[Phase, MethodState, Sequence[Update], Tools], MethodState]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method made for one task. Its results depend on the arguments alone.

    Attributes:
        phases: In order.
        begin: The state at the start of a phase; the given one is empty before the first phase.
        download: The tensor sets for a client, by the names in its local plan; None: the client sits the phase out.
            With None as the client, the global model for evaluators; None: there is no global model. Return sets of
            the state itself where possible: the server stores others only for members of a round.
        aggregate: The state after a round. It depends on the set of updates, not on their order; the server passes
            them ascending by client id. Raises `NothingToAggregate` if they give no new state.
    """

    phases: tuple[Phase, ...]
    begin: Callable[[Phase, MethodState, Tools], MethodState]
    download: Callable[[Phase, MethodState, bytes | None], Mapping[str, TensorSet] | None]
    aggregate: Aggregate


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
