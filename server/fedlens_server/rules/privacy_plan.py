"""Tasks that can have central privacy: what their clients upload is one change of one model that all were sent."""

from collections.abc import Sequence

from fedlens_proto import plans
from fedlens_proto.manifest import select
from fedlens_proto.v1 import blob_pb2, manifest_pb2
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import GLOBAL, Phase, TaskPlan
from fedlens_server.planning.task_settings import SettingsError
from fedlens_server.rules.privacy import Shapes


def need_private(task: TaskPlan, phases: Sequence[Phase]) -> None:
    """Require of a method of one mean that clients upload nothing but trained floats of the set `global`.

    Raises:
        SettingsError: They upload something else; the text names it.
    """
    for phase in phases:
        for i, manifest in enumerate(task.manifests):
            if phase.takes(manifest):
                _need_only_changes(phase, manifest, f"manifests[{i}]")


def shapes_of(phase: Phase, manifest: manifest_pb2.Manifest) -> Shapes:
    """The shape of each tensor that clients with this bundle upload."""
    (upload,) = phase.plan.uploads
    return {spec.name: spec.shape for spec in plans.upload_layout(phase.plan, upload, manifest).specs}


def _need_only_changes(phase: Phase, manifest: manifest_pb2.Manifest, key: str) -> None:
    uploads, statistics = phase.plan.uploads, [each.WhichOneof("kind") for each in phase.plan.statistics]
    if statistics or [upload.name for upload in uploads] != [WEIGHTS]:
        sent = ", ".join([*(upload.name for upload in uploads), *map(str, statistics)]) or "nothing"
        found = f"phase {phase.name!r}, in which clients send {sent}"
        raise SettingsError("dp", found, "left out: it covers weights alone")
    tensors = select(manifest.tensors, uploads[0].tensors)
    starts = plans.starts(phase.plan, uploads[0], manifest)
    for tensor in tensors:
        if starts.get(tensor.name) != GLOBAL:
            found = f"tensor {tensor.name!r}, which does not start from the common model"
            raise SettingsError("dp", found, f"left out in phase {phase.name!r}")
        if tensor.kind == manifest_pb2.TENSOR_KIND_BUFFER or tensor.dtype == blob_pb2.DTYPE_INT64:
            found = f"model {manifest.model!r} with statistics of BatchNorm, {tensor.name!r}, which no training bounds"
            raise SettingsError(key, found, 'one without for dp; or set batch_norm to "local_statistics" or "local"')
