"""Sources of a local plan's tensors: values, downloads, client state, and label counts.

Client state may belong to another bundle, because a client can name other models at any time; then, or where there is
none yet, the other source of the plan stands in for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedlens_edge_client.errors import AssignmentFailed
from fedlens_proto import plans
from fedlens_proto.blob import Array
from fedlens_proto.layout import DTYPES
from fedlens_proto.plans import Use
from fedlens_proto.slots import LABEL_COUNTS
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2

Tensors = Mapping[str, Array]
ClientStateOf = Callable[[str], Tensors | None]


@dataclass(frozen=True)
class Sources:
    """The sources of one run of a local plan.

    Attributes:
        downloads: Sets by name.
        client_state: Returns client state by name, None if there is none yet.
        values: Made by earlier instructions, by name.
        label_counts: Number of train photos of each class, float32 [classes]; None where none are known.
    """

    downloads: Mapping[str, Tensors]
    client_state: ClientStateOf
    values: Mapping[str, Tensors] = field(default_factory=dict)
    label_counts: Array | None = None

    def take(self, use: Use) -> dict[str, Array] | None:
        """The tensors of a use; None where an optional one finds nothing that fits.

        Raises:
            AssignmentFailed: A tensor is missing or does not fit.
        """
        if not use.tensors:
            return {}  # a rule whose tensors earlier ones took reads nothing, and its source was not fetched
        state = _usable_state(use, self.client_state)
        if state is not None:
            return _taken(use, state)
        found, what = self._other(use.source)
        fault = f"there is no {what}" if found is None else _fault(use, found, what)
        if found is not None and fault is None:
            return _taken(use, found)
        if use.is_optional:
            return None
        raise AssignmentFailed(update_pb2.FAILURE_REASON_UNSUPPORTED, str(fault))

    def _other(self, source: assignment_pb2.Source) -> tuple[Tensors | None, str]:
        """What stands in for client state, and its name for errors."""
        match source.WhichOneof("other"):
            case "value":
                return self.values.get(source.value), f"value {source.value!r}"
            case "download":
                return self.downloads.get(source.download), f"downloaded set {source.download!r}"
            case "label_counts" if self.label_counts is not None:
                return {LABEL_COUNTS: self.label_counts}, "label counts"
            case _:
                return self.client_state(source.state), f"client state {source.state!r}"


def needed(plan: assignment_pb2.LocalPlan, bundle: manifest_pb2.Manifest, client_state: ClientStateOf) -> set[str]:
    """Names of the downloads that a plan reads; without stand-ins for client state that fits."""
    found = {
        use.source.download
        for use in plans.uses(plan, bundle)
        if use.tensors and _usable_state(use, client_state) is None
    }
    return (found | {*plan.extractors, *(upload.base for upload in plan.uploads)}) - {""}


def _usable_state(use: Use, client_state: ClientStateOf) -> Tensors | None:
    """The client state of a use, if every tensor of it fits."""
    found = client_state(use.source.state) if use.source.state and use.tensors else None
    return found if found is not None and _fault(use, found, "") is None else None


def _taken(use: Use, found: Tensors) -> dict[str, Array]:
    return {spec.name: found[spec.name] for spec in use.tensors}


def _fault(use: Use, found: Tensors, what: str) -> str | None:
    """The first tensor that is missing or does not fit, in words; None: all fit."""
    for spec in use.tensors:
        if spec.name not in found:
            return f"{what} has no tensor {spec.name!r}"
        tensor = found[spec.name]
        if tensor.shape != spec.shape or tensor.dtype != DTYPES[spec.dtype]:
            has, wanted = f"{tensor.dtype}{list(tensor.shape)}", f"{DTYPES[spec.dtype]}{list(spec.shape)}"
            return f"{what}: tensor {spec.name!r} is {has}, needed is {wanted}"
    return None
