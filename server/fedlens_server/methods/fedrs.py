"""FedRS: FedAvg with a softmax that is restricted for classes of which a client has no photos.

Paper: Li, Zhan, KDD 2021, https://doi.org/10.1145/3447548.3467254, Equation 5.

    paper      here                      meaning
    psi        shared[GLOBAL]            model, averaged by numbers of examples
    n_k^c      label counts              photos of class c of client k; they stay on the device
    alpha      hyper-parameter alpha     factor of the logit of a class without photos, 0 to 1; 1 is FedAvg
    -          options.variant           `paper`: the factor is 1 or alpha; `reference`: alpha + (1 - alpha) n_c / max n

The factors are in the loss alone; predictions are not scaled.

Deviation: in both variants the whole logit is scaled, with the bias, as printed; the authors' code leaves the bias out
of the loss and clips gradients.
"""

from collections.abc import Mapping

from fedlens_proto import slots
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.fedavg import sharing_global_set, whole_model_plan
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import bind
from fedlens_server.planning.method import Method, TaskPlan
from fedlens_server.planning.task_settings import Number, SettingsError

OBJECTIVE = "restricted_softmax"
PAPER, REFERENCE = "paper", "reference"
SOFT = "soft"
OPTIONS = {"variant": options.choice(PAPER, REFERENCE)}


def with_label_counts(task: TaskPlan, hyper: Mapping[str, Number]) -> Method:
    """FedAvg with an objective that takes the client's photos of each class, which are not uploaded.

    Raises:
        SettingsError: The bundles cannot be averaged.
    """
    bundles.need_equal(task)
    counts = bind(slots.LABEL_COUNTS, pb.Source(label_counts=True))
    return sharing_global_set(task, whole_model_plan(task, bindings=[counts], hyper=hyper))


def for_task(task: TaskPlan) -> Method:
    """FedRS for a task.

    Raises:
        SettingsError: The bundles have another objective or cannot be averaged.
    """
    settings = task.settings
    variant = task.options["variant"]
    bundles.need_objective(task, [OBJECTIVE])
    if SOFT in settings.hyper:
        allowed = "left out: options.variant says it for fedrs"
        raise SettingsError(f"hyper.{SOFT}", settings.hyper[SOFT], allowed)
    return with_label_counts(task, {**bundles.hyper_of(task, "step"), SOFT: float(variant == REFERENCE)})
