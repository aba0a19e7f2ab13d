"""FedBN: FedAvg in which every client keeps its own BatchNorm.

Paper: Li et al., ICLR 2021, https://arxiv.org/abs/2102.07623, Algorithm 1.

    paper      here                   meaning
    w_0        shared[GLOBAL]         all tensors but those of BatchNorm; averaged by numbers of examples
    w_{0,k}    client state `norms`   BatchNorm's weights, biases and statistics of client k, which never leave it

A client without client state starts from the bundle's initial BatchNorm. Nobody has one BatchNorm for all, so there is
no global model; personal evaluation measures the clients' models. On whole models without BatchNorm it is FedAvg, and
has a global model; a frozen-backbone bundle that trains no BatchNorm is refused.

Deviations: clients are weighted by numbers of examples, as in FL-bench; the authors' code weighs them alike. BatchNorm
is told by the kind of a tensor; by "bn" in names, as in that code, a ResNet's `downsample.1` is missed.
"""

from collections.abc import Callable
from dataclasses import replace

from fedlens_proto.manifest import select
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods import fedavg
from fedlens_server.planning import bundles
from fedlens_server.planning.batch_norm import with_batch_norm
from fedlens_server.planning.method import Method, TaskPlan
from fedlens_server.planning.task_settings import SettingsError

NORMS = pb.TensorSelector(kinds=[manifest_pb2.TENSOR_KIND_NORM, manifest_pb2.TENSOR_KIND_BUFFER])


def keeping_norms(make: Callable[[TaskPlan], Method], task: TaskPlan) -> Method:
    """The method that `make` gives for a task, with BatchNorm that stays with the clients.

    Raises:
        SettingsError: As `make`; the task sets `batch_norm`; a bundle has no BatchNorm.
    """
    settings = task.settings
    if settings.batch_norm != "average":
        allowed = f"left out: with {settings.method} all of BatchNorm stays with the clients"
        raise SettingsError("batch_norm", f'"{settings.batch_norm}"', allowed)
    for manifest in task.ordinary:
        if not select(manifest.tensors, NORMS):
            found = f"model {manifest.model!r} without BatchNorm that is trained"
            raise SettingsError(f"manifests[{task.manifests.index(manifest)}]", found, "one with it; else use fedavg")
    return with_batch_norm(make, replace(task, settings=settings.model_copy(update={"batch_norm": "local"})))


def for_task(task: TaskPlan) -> Method:
    """FedBN for a task.

    Raises:
        SettingsError: The task sets `batch_norm`; its bundles cannot be averaged, or have a frozen backbone and no
            BatchNorm.
    """
    bundles.need_equal(task)
    whole = all(each.bundle_class == manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL for each in task.ordinary)
    if whole and task.settings.batch_norm == "average" and not bundles.tensors(task, NORMS):
        same = "fedbn is fedavg in this task: no model of it has BatchNorm that could stay with the clients"
        return replace(fedavg.for_task(task), notice=same)
    return keeping_norms(fedavg.for_task, task)
