"""Where the tensors of a pass come from: kept sets, and downloads where nothing is kept."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.errors import PassFailed
from fedlens_proto import manifest
from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2, blob_pb2, manifest_pb2, update_pb2

# The name of the only tensor of a reference that is no set of tensors.
LABEL_COUNTS = "label_counts"
# The name of the set that every bundle brings along.
INITIAL = "initial"

Tensors = Mapping[str, Array]


def available(
    sets: Iterable[assignment_pb2.BlobSet], bundle: manifest_pb2.Manifest
) -> dict[str, assignment_pb2.BlobSet]:
    """What can be downloaded, by name: these sets and the bundle's initial weights."""
    size = next(part.size for part in bundle.parts if part.sha256 == bundle.initial)
    initial = assignment_pb2.BlobSet(name=INITIAL, sha256=bundle.initial, size=size)
    return {INITIAL: initial} | {entry.name: entry for entry in sets}


def needed(plan: assignment_pb2.LocalPass, is_kept: Callable[[str], bool]) -> set[str]:
    """Names of the downloaded sets that a pass reads: a fallback only where nothing is kept."""
    sources = [rule.source for rule in plan.start] + [b.set for b in plan.references if b.HasField("set")]
    found = {source.download for source in sources if not (source.kept and is_kept(source.kept))}
    return (found | {*plan.extractors, plan.upload.base_set}) - {""}


class Sources:
    """Where the tensors of a pass come from."""

    def __init__(
        self,
        bundle: manifest_pb2.Manifest,
        downloads: Mapping[str, Tensors],
        kept: Callable[[str], Tensors | None],
    ) -> None:
        """Downloads by name; `kept` gives None for a name under which nothing is kept yet."""
        self._bundle = bundle
        self._tensors = {tensor.name: tensor for tensor in bundle.tensors}
        self._downloads = downloads
        self._kept = kept

    def start(self, rules: Iterable[assignment_pb2.StartRule]) -> dict[str, Array]:
        """Every exchangeable tensor, each from the first rule that selects it.

        Raises:
            PassFailed: A tensor is not there, or not as the bundle has it.
        """
        weights: dict[str, Array] = {}
        for rule in rules:
            names = [tensor.name for tensor in manifest.select(self._bundle.tensors, rule.tensors)]
            weights |= self._take(rule.source, [name for name in names if name not in weights])
        if missing := self._tensors.keys() - weights.keys():
            raise PassFailed(
                update_pb2.FAILURE_REASON_UNSUPPORTED, f"no start rule selects tensor {min(missing)!r} of the bundle"
            )
        return weights

    def reference(
        self, binding: assignment_pb2.ReferenceBinding, start: dict[str, Array], counts: NDArray[np.int64]
    ) -> Tensors:
        """The tensors of a reference; errors as in `start`."""
        names = next(list(ref.tensors) for ref in self._bundle.references if ref.name == binding.name)
        if binding.HasField("label_counts"):
            return {LABEL_COUNTS: counts.astype(np.float32)}
        if binding.HasField("start"):
            return {name: start[name] for name in names}
        return self._take(binding.set, names)

    def _take(self, source: assignment_pb2.SetSource, names: list[str]) -> dict[str, Array]:
        if not names:
            return {}
        found = self._kept(source.kept) if source.kept else None
        what = f"kept set {source.kept!r}"
        if found is None:
            if not source.download:
                raise PassFailed(update_pb2.FAILURE_REASON_INTERNAL, f"nothing is kept yet under {source.kept!r}")
            what = f"downloaded set {source.download!r}"
            found = self._downloads.get(source.download)
            if found is None:
                raise PassFailed(update_pb2.FAILURE_REASON_UNSUPPORTED, f"there is no {what}")
        return {name: self._checked(found, name, what) for name in names}

    def _checked(self, found: Tensors, name: str, what: str) -> Array:
        wanted = self._tensors[name]
        if name not in found:
            raise PassFailed(update_pb2.FAILURE_REASON_UNSUPPORTED, f"{what} has no tensor {name!r}")
        tensor = found[name]
        kind = np.dtype(np.float32 if wanted.dtype == blob_pb2.DTYPE_FLOAT32 else np.int64)
        if tensor.shape != tuple(wanted.shape) or tensor.dtype != kind:
            raise PassFailed(
                update_pb2.FAILURE_REASON_UNSUPPORTED,
                f"{what}: tensor {name!r} is {tensor.dtype}{list(tensor.shape)}, "
                f"the bundle has {kind}{list(wanted.shape)}",
            )
        return tensor
