"""Ditto: FedAvg, beside which each client trains a model of its own that is pulled towards the global one.

Paper: Li, Hu, Beirami, Smith, ICML 2021, https://arxiv.org/abs/2012.04221, Algorithm 1.

    paper     here                     meaning
    w^t       shared[GLOBAL]           global model at the start of round t, averaged by numbers of examples
    v_k       client state `personal`  client k's own model; from w^t in its first round
    lambda    options.lambda           strength of the pull of v_k towards w^t; 0: v_k trains alone
    s         epochs or steps          local steps of both models

Both train with program `step` of objective `proximal`: the global model with mu 0, which is FedAvg, the own one with
mu = lambda. The client predicts with its own model.
"""

from fedlens_server.methods.fedavg import sharing_global_set
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import (
    START,
    TRAINED,
    assemble,
    bind,
    evaluate,
    keep,
    plan,
    rule,
    source,
    train,
    upload,
)
from fedlens_server.planning.method import GLOBAL, Method, TaskPlan
from fedlens_server.planning.task_settings import SettingsError

OBJECTIVE = "proximal"
PERSONAL = "personal"
OWN_START = "personal_start"
OPTIONS = {"lambda": options.number(0, 1000, default=0.1)}


def for_task(task: TaskPlan) -> Method:
    """Ditto for a task.

    Raises:
        SettingsError: The task sets mu, or its bundles have another objective or cannot be averaged.
    """
    settings = task.settings
    strength = float(task.options["lambda"])
    bundles.need_objective(task, [OBJECTIVE])
    bundles.need_equal(task)
    if "mu" in settings.hyper:
        raise SettingsError("hyper.mu", settings.hyper["mu"], "left out: options.lambda is the pull of ditto")
    shared = source(download=GLOBAL)
    own = rule(source(state=PERSONAL, download=GLOBAL))
    pull = [bind(GLOBAL, shared)]
    local_plan = plan(
        assemble(START, rule(shared)),
        train(settings, hyper={**settings.hyper, "mu": 0.0}, bindings=pull),
        assemble(OWN_START, own),
        train(settings, PERSONAL, start=OWN_START, hyper={**settings.hyper, "mu": strength}, bindings=pull),
        keeps=[keep(PERSONAL, PERSONAL)],
        uploads=[upload(settings, base=GLOBAL)],
        evaluations=[evaluate(TRAINED), evaluate(PERSONAL)],
    )
    return sharing_global_set(task, local_plan, model=(own,))
