"""FedPer: a shared extractor; each client keeps its own classifier.

Paper: Arivazhagan et al. 2019, https://arxiv.org/abs/1912.00818, Algorithms 1 and 2.

    paper    here                       meaning
    W_B      state[GLOBAL]              base layers: the extractor, averaged by numbers of examples
    W_P_j    client state `classifier`  personalisation layers of client j, which never leave it
    gamma_j  n_j / n                    weight of client j in the mean

The classifier is the last FC layer, K_P = 1 in the paper's notation. A client without client state starts from the
bundle's initial classifier.
"""

from collections.abc import Sequence

from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.fedavg import GLOBAL, sharing_global_set
from fedlens_server.planning import bundles, options
from fedlens_server.planning.method import Method, TaskPlan

OWN_CLASSIFIER = "classifier"


def partial_plan(
    task: TaskPlan, shared: pb.TensorSelector, own: pb.TensorSelector, kept: str, stages: Sequence[pb.Stage]
) -> pb.LocalPlan:
    """The local plan that downloads and uploads the tensors `shared` and has the client keep the others, `own`.

    Args:
        task: The task.
        shared: The tensors of the set `global`.
        own: All other tensors, at first the bundle's initial ones.
        kept: The name of their set in the client state.
        stages: The local training.
    """
    return pb.LocalPlan(
        start=[
            pb.StartRule(tensors=shared, source=pb.SetSource(download=GLOBAL)),
            pb.StartRule(tensors=own, source=pb.SetSource(kept=kept, download=INITIAL)),
        ],
        stages=stages,
        keep=[pb.Keep(set=kept, tensors=own)],
        upload=task.settings.upload(GLOBAL, shared),
        evaluation=pb.EvaluationPlan(at_start=True, at_end=True),
    )


def sharing_extractor(task: TaskPlan, stages: Sequence[pb.Stage]) -> Method:
    """The method of one phase that trains a shared extractor with the clients' own classifiers.

    Raises:
        SettingsError: The bundles have no extractor that can be averaged, or an objective with references.
    """
    bundles.need_no_references(task)
    bundles.need_equal(task)
    bundles.need_tensors(task, bundles.EXTRACTOR, "layers before the classifier")
    local_plan = partial_plan(task, bundles.EXTRACTOR, bundles.CLASSIFIER, OWN_CLASSIFIER, stages)
    return sharing_global_set(task, local_plan, names=bundles.names(task, bundles.EXTRACTOR), has_model=False)


def for_task(task: TaskPlan) -> Method:
    """FedPer for a task.

    Raises:
        SettingsError: The task sets options, or its bundles' extractors cannot be averaged.
    """
    options.read(task.settings, {})
    return sharing_extractor(task, [task.settings.stage("step")])
