"""FedPer: a shared extractor; each client keeps its own classifier.

Paper: Arivazhagan et al. 2019, https://arxiv.org/abs/1912.00818, Algorithms 1 and 2.

    paper    here                       meaning
    W_B      shared[GLOBAL]             base layers: the extractor, averaged by numbers of examples
    W_P_j    client state `classifier`  personalisation layers of client j, which never leave it
    gamma_j  n_j / n                    weight of client j in the mean

The classifier is the last FC layer, K_P = 1 in the paper's notation. A client without client state starts from the
bundle's initial classifier.
"""

from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.fedavg import sharing_global_set
from fedlens_server.planning import bundles
from fedlens_server.planning.local_plans import START, assemble, keep, plan, rule, source, train, upload
from fedlens_server.planning.method import GLOBAL, Method, TaskPlan

OWN_CLASSIFIER = "classifier"


def sharing_extractor(task: TaskPlan, *trainings: pb.Instruction) -> Method:
    """The method of one phase that trains a shared extractor with the clients' own classifiers.

    Raises:
        SettingsError: The bundles have no extractor that can be averaged, or an objective with references.
    """
    bundles.need_no_references(task)
    bundles.need_equal(task)
    bundles.need_tensors(task, bundles.EXTRACTOR, "layers before the classifier")
    own = source(state=OWN_CLASSIFIER, download=INITIAL)
    local_plan = plan(
        assemble(START, rule(source(download=GLOBAL), bundles.EXTRACTOR), rule(own, bundles.CLASSIFIER)),
        *trainings,
        keeps=[keep(OWN_CLASSIFIER, tensors=bundles.CLASSIFIER)],
        uploads=[upload(task.settings, tensors=bundles.EXTRACTOR, base=GLOBAL)],
    )
    return sharing_global_set(task, local_plan, names=bundles.names(task, bundles.EXTRACTOR), has_model=False)


def for_task(task: TaskPlan) -> Method:
    """FedPer for a task.

    Raises:
        SettingsError: The bundles' extractors cannot be averaged.
    """
    return sharing_extractor(task, train(task.settings))
