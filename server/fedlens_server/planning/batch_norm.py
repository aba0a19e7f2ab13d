"""BatchNorm that stays with the clients, for every method: the task's setting `batch_norm`.

    average            affine weights and statistics are exchanged like all other tensors
    local_statistics   running means, variances and counters stay with each client (FL-bench, pFedSim's code)
    local              affine weights, too (FedBN: Li et al., ICLR 2021, arXiv:2102.07623)

A client starts from the bundle's initial BatchNorm and keeps its own in the client state `norms`. The method plans and
aggregates a model without these tensors, and there is no global model, because nobody has one BatchNorm for all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedlens_proto.manifest import INITIAL, select
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.planning.method import Method, MethodState, Phase, TaskPlan, TensorSet, Tools
from fedlens_server.planning.task_settings import SettingsError

NORMS = "norms"
_STATISTICS = manifest_pb2.TENSOR_KIND_BUFFER
_OWN = {"average": (), "local_statistics": (_STATISTICS,), "local": (manifest_pb2.TENSOR_KIND_NORM, _STATISTICS)}
_KINDS = (manifest_pb2.TENSOR_KIND_CONV, manifest_pb2.TENSOR_KIND_LINEAR, *_OWN["local"])


def with_batch_norm(make: Callable[[TaskPlan], Method], task: TaskPlan) -> Method:
    """The method that `make` gives for a task, with BatchNorm where the task's setting has it.

    Raises:
        SettingsError: As `make`; or the bundles have no BatchNorm, concatenate extractors, or have an objective that
            compares BatchNorm's weights, while the setting keeps BatchNorm with the clients.
    """
    setting = task.settings.batch_norm
    own = pb.TensorSelector(kinds=_OWN[setting])
    if not own.kinds:
        return make(task)
    if task.concatenated:
        found = f'"{setting}" with a bundle that concatenates extractors'
        raise SettingsError("batch_norm", found, '"average": all clients run the same extractors')
    if not any(select(manifest.tensors, own) for manifest in task.ordinary):
        raise SettingsError("batch_norm", f'"{setting}"', '"average": no bundle has BatchNorm')
    for manifest in task.ordinary:
        held = {tensor.name for tensor in select(manifest.tensors, own)}
        if any(held.intersection(reference.tensors) for reference in manifest.references):
            found = f'"{setting}" with objective {manifest.objective!r}, which compares BatchNorm\'s weights'
            raise SettingsError("batch_norm", found, '"average" or "local_statistics"')
    shared = replace(task, manifests=tuple(_without(manifest, own) for manifest in task.manifests))
    method = make(shared)
    names = [tensor.name for tensor in shared.ordinary[0].tensors]

    def begin(phase: Phase, state: MethodState, tools: Tools) -> MethodState:
        initial = {name: tools.initial[name] for name in names}
        return method.begin(phase, state, replace(tools, initial=initial))

    def download(phase: Phase, state: MethodState, client: bytes | None) -> Mapping[str, TensorSet] | None:
        return None if client is None else method.download(phase, state, client)

    phases = tuple(replace(phase, local_plan=_keeping(phase.local_plan, own, task.ordinary)) for phase in method.phases)
    return replace(method, phases=phases, begin=begin, download=download)


def _without(manifest: manifest_pb2.Manifest, own: pb.TensorSelector) -> manifest_pb2.Manifest:
    """The manifest of the tensors that are exchanged."""
    reduced = manifest_pb2.Manifest()
    reduced.CopyFrom(manifest)
    del reduced.tensors[:]
    reduced.tensors.extend(tensor for tensor in manifest.tensors if tensor.kind not in own.kinds)
    return reduced


def _keeping(
    local_plan: pb.LocalPlan, own: pb.TensorSelector, manifests: Sequence[manifest_pb2.Manifest]
) -> pb.LocalPlan:
    """The plan with the tensors `own` in the client state, unless they never leave the client anyway."""
    if not local_plan.HasField("upload") or not any(
        tensor.kind in own.kinds
        for manifest in manifests
        for tensor in select(manifest.tensors, local_plan.upload.tensors)
    ):
        return local_plan
    keeping = pb.LocalPlan()
    keeping.CopyFrom(local_plan)
    del keeping.start[:]
    keeping.start.append(pb.StartRule(tensors=own, source=pb.SetSource(kept=NORMS, download=INITIAL)))
    keeping.start.extend(local_plan.start)
    keeping.keep.add(set=NORMS, tensors=own)
    kinds = [kind for kind in keeping.upload.tensors.kinds or _KINDS if kind not in own.kinds]
    del keeping.upload.tensors.kinds[:]
    keeping.upload.tensors.kinds.extend(kinds)
    return keeping
