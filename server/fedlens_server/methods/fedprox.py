"""FedProx: FedAvg with a proximal term that keeps clients near the downloaded model.

Paper: Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127, Algorithm 2.

    paper   here                 meaning
    w^t     shared[GLOBAL]       model at the start of round t; the reference `global` of the objective
    mu      hyper-parameter mu   strength of the proximal term, > 0
    h_k     the bundle's step    F_k(w) + mu/2 ||w - w^t||^2, objective `proximal`

Deviations: clients are weighted by their numbers of examples, not uniformly, as in the comparisons of the papers that
FedLens reproduces. The local problem is solved by the task's epochs or steps, not to a given inexactness.
"""

from fedlens_server.methods.fedavg import sharing_global_set, whole_model_plan
from fedlens_server.planning import bundles
from fedlens_server.planning.method import Method, TaskPlan
from fedlens_server.planning.task_settings import SettingsError

OBJECTIVE = "proximal"


def for_task(task: TaskPlan) -> Method:
    """FedProx for a task.

    Raises:
        SettingsError: The bundles have no proximal term or cannot be averaged, or mu is 0.
    """
    bundles.need_objective(task, [OBJECTIVE])
    bundles.need_equal(task)
    for manifest in task.ordinary:
        mu = bundles.hyper_value(task.settings, manifest, "mu")
        if mu <= 0:
            raise SettingsError("hyper.mu", f"{mu:g}", "above 0 for fedprox; with 0 it is fedavg")
    return sharing_global_set(task, whole_model_plan(task))
