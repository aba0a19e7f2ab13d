"""BatchNorm that stays with the clients, for every method: the task's setting `batch_norm`.

    average            affine weights and statistics are exchanged like all other tensors
    local_statistics   running means, variances and counters stay with each client (FL-bench, pFedSim's code)
    local              affine weights, too (FedBN: Li et al., ICLR 2021, arXiv:2102.07623)

A client starts from the bundle's initial BatchNorm and keeps its own in the client state `norms`. The method plans and
aggregates a model without these tensors, and there is no global model, because nobody has one BatchNorm for all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedlens_proto import plans
from fedlens_proto.manifest import INITIAL, select
from fedlens_proto.slots import references, tensor_of
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.planning.local_plans import keep, rule, source
from fedlens_server.planning.method import Method, Phase, State, TaskPlan, TensorSet, Tools
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
    shared = replace(task, manifests=tuple(_without(manifest, own) for manifest in task.manifests))
    method = make(shared)
    run = {name for phase in method.phases for name in plans.programs(phase.plan)}
    for manifest in task.ordinary:
        held = {tensor.name for tensor in select(manifest.tensors, own)}
        for program in (each for each in manifest.programs if each.name in run):
            compared = {tensor_of(slot) for found in references(program).values() for slot in found}
            if held & compared:
                named = program.objective or program.name
                found = f'"{setting}" with objective {named!r}, which compares BatchNorm\'s weights'
                raise SettingsError("batch_norm", found, '"average" or "local_statistics"')
    names = [tensor.name for tensor in shared.ordinary[0].tensors]

    def begin(phase: Phase, state: State, tools: Tools) -> State:
        initial = {name: tools.initial[name] for name in names}
        return method.begin(phase, state, replace(tools, initial=initial))

    def download(phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        return None if client is None else method.download(phase, state, client)

    phases = tuple(_keeping(phase, own, task.ordinary) for phase in method.phases)
    return replace(method, phases=phases, begin=begin, download=download)


def _without(manifest: manifest_pb2.Manifest, own: pb.TensorSelector) -> manifest_pb2.Manifest:
    """The manifest of the tensors that are exchanged."""
    reduced = manifest_pb2.Manifest()
    reduced.CopyFrom(manifest)
    del reduced.tensors[:]
    reduced.tensors.extend(tensor for tensor in manifest.tensors if tensor.kind not in own.kinds)
    return reduced


def _keeping(phase: Phase, own: pb.TensorSelector, manifests: Sequence[manifest_pb2.Manifest]) -> Phase:
    """The phase with the tensors `own` in the client state, unless they never leave the client anyway."""
    plan = pb.LocalPlan()
    plan.CopyFrom(phase.plan)
    derived = {instruction.value for instruction in plan.instructions if instruction.HasField("derive")}
    weights = [upload for upload in plan.uploads if upload.value not in derived]
    leaving = [upload for upload in weights if _selects(upload.tensors, own, manifests)]
    for upload in leaving:
        plan.keeps.append(keep(NORMS, upload.value, own))
        kinds = [kind for kind in upload.tensors.kinds or _KINDS if kind not in own.kinds]
        del upload.tensors.kinds[:]
        upload.tensors.kinds.extend(kinds)
    if not leaving:
        return phase
    for instruction in plan.instructions:
        if instruction.HasField("assemble"):
            rules = _starting(instruction.assemble.rules, own, manifests[0])
            instruction.assemble.CopyFrom(pb.Assemble(rules=rules))
    return replace(phase, plan=plan, model=None if phase.model is None else _starting(phase.model, own, manifests[0]))


def _starting(rules: Sequence[pb.Rule], own: pb.TensorSelector, manifest: manifest_pb2.Manifest) -> tuple[pb.Rule, ...]:
    """The rules with the tensors `own` from the client state that they read for them, else from `norms`."""
    held = {tensor.name for tensor in select(manifest.tensors, own)}
    sources = [each.source for each, tensors in plans.selected(rules, manifest) if held & {t.name for t in tensors}]
    if not sources or sources[0].value:
        return tuple(rules)
    return rule(source(state=sources[0].state or NORMS, download=INITIAL), own), *rules


def _selects(selector: pb.TensorSelector, own: pb.TensorSelector, manifests: Sequence[manifest_pb2.Manifest]) -> bool:
    return any(tensor.kind in own.kinds for manifest in manifests for tensor in select(manifest.tensors, selector))
