"""MOON: FedAvg with a contrast that draws a client's features to the global model's, away from its last model's.

Paper: Li, He, Song, CVPR 2021, https://arxiv.org/abs/2103.16257, Algorithm 1.

    paper        here                      meaning
    w^t          shared[GLOBAL]            model at the start of round t; the reference `global` of the objective
    w_i^{t-1}    client state `previous`   client i's last trained model; the reference `previous`
    mu, tau      hyper-parameters          weight of the contrast, and its temperature; objective `moon`

A client without client state compares with the global model alone, so that the contrast is ln 2 with gradient 0. One
that was out for long compares with an old model, as in the paper.

Deviations: features are what enters the classifier, before the ReLU, as in FL-bench; the authors' model has a
projection head there, which is a matter of the model. One previous model is kept. Both are in evaluation mode.
"""

from fedlens_server.methods.fedavg import sharing_global_set, whole_model_plan
from fedlens_server.planning import bundles
from fedlens_server.planning.local_plans import bind, keep, source
from fedlens_server.planning.method import GLOBAL, Method, TaskPlan

OBJECTIVE = "moon"
PREVIOUS = "previous"


def for_task(task: TaskPlan) -> Method:
    """MOON for a task.

    Raises:
        SettingsError: The bundles have another objective or cannot be averaged.
    """
    bundles.need_objective(task, [OBJECTIVE])
    bundles.need_equal(task)
    bindings = [
        bind(GLOBAL, source(download=GLOBAL)),
        bind(PREVIOUS, source(state=PREVIOUS, download=GLOBAL)),
    ]
    return sharing_global_set(task, whole_model_plan(task, bindings=bindings, keeps=[keep(PREVIOUS)]))
