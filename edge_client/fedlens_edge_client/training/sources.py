"""Sources of a local plan's tensors: client state, and downloads that stand in for missing or unfit state.

Client state may belong to another bundle, because a client can name other models at any time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.errors import AssignmentFailed
from fedlens_proto import manifest
from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2, blob_pb2, manifest_pb2, update_pb2

# Tensor name used by the label-count reference.
LABEL_COUNTS = "label_counts"

Tensors = Mapping[str, Array]


def needed(
    plan: assignment_pb2.LocalPlan, bundle: manifest_pb2.Manifest, client_state: Callable[[str], Tensors | None]
) -> set[str]:
    """Names of the downloads that a plan reads; without stand-ins for client state that fits the bundle."""
    found = Sources(bundle, {}, client_state).downloaded(plan)
    return (found | {*plan.extractors, plan.upload.base_set}) - {""}


def starting_from(sets: Mapping[str, Tensors], bundle: manifest_pb2.Manifest) -> assignment_pb2.LocalPlan:
    """Start rules that take each tensor from the first set that has it, and from the initial weights last."""
    plan = assignment_pb2.LocalPlan()
    for name in sorted(sets, key=lambda name: name == manifest.INITIAL):
        exchangeable = [tensor.name for tensor in bundle.tensors if tensor.name in sets[name]]
        if exchangeable:  # a rule without names would select every tensor
            rule = plan.start.add(source=assignment_pb2.SetSource(download=name))
            rule.tensors.names.extend(exchangeable)
    return plan


class Sources:
    """The sources of a local plan's tensors."""

    def __init__(
        self,
        bundle: manifest_pb2.Manifest,
        downloads: Mapping[str, Tensors],
        client_state: Callable[[str], Tensors | None],
    ) -> None:
        """Downloads by name; `client_state` returns None for a name without state."""
        self._bundle = bundle
        self._tensors = {tensor.name: tensor for tensor in bundle.tensors}
        self._downloads = downloads
        self._client_state = client_state

    def downloaded(self, plan: assignment_pb2.LocalPlan) -> set[str]:
        """Names of the downloads that the start rules and references of a plan read."""
        read = [*self._selected(plan.start)]
        read += [(binding.set, self._referred(binding)) for binding in plan.references if binding.HasField("set")]
        return {source.download for source, names in read if names and self._usable(source, names) is None}

    def start(self, rules: Iterable[assignment_pb2.StartRule]) -> dict[str, Array]:
        """Every exchangeable tensor, each from the first rule that selects it.

        Raises:
            AssignmentFailed: A tensor is missing, or does not fit the bundle.
        """
        weights: dict[str, Array] = {}
        for source, names in self._selected(rules):
            weights |= self._take(source, names)
        if missing := self._tensors.keys() - weights.keys():
            raise AssignmentFailed(
                update_pb2.FAILURE_REASON_UNSUPPORTED, f"no start rule selects tensor {min(missing)!r} of the bundle"
            )
        return weights

    def reference(
        self, binding: assignment_pb2.ReferenceBinding, start: dict[str, Array], counts: NDArray[np.int64]
    ) -> Tensors:
        """The tensors of a reference; errors as in `start`."""
        if binding.HasField("label_counts"):
            return {LABEL_COUNTS: counts.astype(np.float32)}
        names = self._referred(binding)
        if binding.HasField("start"):
            return {name: start[name] for name in names}
        return self._take(binding.set, names)

    def _selected(
        self, rules: Iterable[assignment_pb2.StartRule]
    ) -> Iterator[tuple[assignment_pb2.SetSource, list[str]]]:
        """Each rule's source with the tensors that no earlier rule selects."""
        taken: set[str] = set()
        for rule in rules:
            names = [tensor.name for tensor in manifest.select(self._bundle.tensors, rule.tensors)]
            yield rule.source, [name for name in names if name not in taken]
            taken.update(names)

    def _referred(self, binding: assignment_pb2.ReferenceBinding) -> list[str]:
        return next(list(ref.tensors) for ref in self._bundle.references if ref.name == binding.name)

    def _usable(self, source: assignment_pb2.SetSource, names: list[str]) -> Tensors | None:
        """The client state of a source; None if there is none, or it does not fit and a download stands in for it."""
        found = self._client_state(source.kept) if source.kept else None
        if found is None or not source.download:
            return found
        return found if all(self._fault(found, name) is None for name in names) else None

    def _take(self, source: assignment_pb2.SetSource, names: list[str]) -> dict[str, Array]:
        if not names:
            return {}
        found, what = self._usable(source, names), f"client state {source.kept!r}"
        if found is None:
            if not source.download:
                raise AssignmentFailed(update_pb2.FAILURE_REASON_INTERNAL, f"there is no {what} yet")
            what = f"downloaded set {source.download!r}"
            found = self._downloads.get(source.download)
            if found is None:
                raise AssignmentFailed(update_pb2.FAILURE_REASON_UNSUPPORTED, f"there is no {what}")
        for name in names:
            if fault := self._fault(found, name):
                raise AssignmentFailed(update_pb2.FAILURE_REASON_UNSUPPORTED, f"{what}{fault}")
        return {name: found[name] for name in names}

    def _fault(self, found: Tensors, name: str) -> str | None:
        """The fault of a tensor, as text to follow the name of its source; None if it fits."""
        wanted = self._tensors[name]
        if name not in found:
            return f" has no tensor {name!r}"
        tensor = found[name]
        kind = np.dtype(np.float32 if wanted.dtype == blob_pb2.DTYPE_FLOAT32 else np.int64)
        if tensor.shape == tuple(wanted.shape) and tensor.dtype == kind:
            return None
        return f": tensor {name!r} is {tensor.dtype}{list(tensor.shape)}, the bundle has {kind}{list(wanted.shape)}"
