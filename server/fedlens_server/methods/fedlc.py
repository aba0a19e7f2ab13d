"""FedLC: FedAvg with logits that are calibrated by a client's photos of each class.

Paper: Zhang et al., ICML 2022, https://arxiv.org/abs/2209.00189, Equation 7.

    paper      here                    meaning
    w          shared[GLOBAL]          model, averaged by numbers of examples
    n_y        label counts            photos of class y of the client; they stay on the device
    tau        hyper-parameter tau     strength: the loss is the cross-entropy of f_y - tau n_y^(-1/4)

Deviations: the printed loss leaves the true class out of the sum; it has no lower bound and does not train. It is in
the sum here, as in all public code. A class without photos counts 1e-8 of one, as in FL-bench.
"""

from fedlens_server.methods.fedrs import with_label_counts
from fedlens_server.planning import bundles
from fedlens_server.planning.method import Method, TaskPlan

OBJECTIVE = "calibrated_logits"


def for_task(task: TaskPlan) -> Method:
    """FedLC for a task.

    Raises:
        SettingsError: The bundles have another objective or cannot be averaged.
    """
    bundles.need_objective(task, [OBJECTIVE])
    return with_label_counts(task, bundles.hyper_of(task, "step"))
