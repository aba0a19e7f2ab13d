"""Per-FedAvg: a common model from which each client's own is one epoch of gradient descent away.

Paper: Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, https://arxiv.org/abs/2002.07948, Algorithm 1.

    paper       here                    meaning
    w_k         shared[GLOBAL]          common model at the start of round k
    A_k         updates                 clients whose updates arrived
    w_{k+1}^i   values["weights"]       model of client i after its meta steps
    alpha       hyper-parameter alpha   rate of the inner step, and of the adaptation
    beta        the bundle's rates      of the meta step; momentum is 0 unless the task sets it
    tau         epochs or steps         local meta steps, each over one batch: half of it is D1, half D2
    -           client state `adapted`  the client's own model: one epoch of gradient descent from w_k

The bundle's objective says which gradient a step takes: `meta_fo` the first-order one (FO), `meta_hf` the exact one
(HF). Program `fine_tune` adapts. As in the paper, the mean over clients is plain.

Deviations: `adapted` starts from the model that the client downloaded, not from the mean of the same round, which it
gets in its next round. A batch that ends an epoch is not dropped; it is halved as well. A bundle may have another
optimiser than SGD for the meta step.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedlens_server.methods.fedavg import sharing_global_set, with_mean
from fedlens_server.planning import bundles
from fedlens_server.planning.local_plans import (
    EVALUATIONS,
    FINE_TUNED,
    START,
    assemble,
    evaluate,
    keep,
    plan,
    rule,
    source,
    train,
    upload,
)
from fedlens_server.planning.method import GLOBAL, Method, Phase, State, TaskPlan, Tools, Update
from fedlens_server.planning.task_settings import SettingsError

OBJECTIVES = ("meta_fo", "meta_hf")
FINE_TUNE = "fine_tune"
ADAPTED = "adapted"


def with_plain_mean(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
    """The state with the plain mean of the models of all clients that trained.

    Raises:
        NothingToAggregate: No client trained on any photo.
    """
    alike = [replace(update, num_examples=min(update.num_examples, 1)) for update in updates]
    return with_mean(phase, state, alike, tools)


def for_task(task: TaskPlan) -> Method:
    """Per-FedAvg for a task.

    Raises:
        SettingsError: The bundles have another objective or cannot be averaged, or alpha is 0.
    """
    settings = task.settings
    bundles.need_objective(task, OBJECTIVES)
    bundles.need_programs(task, [FINE_TUNE], f"--objective {OBJECTIVES[0]}")
    bundles.need_equal(task)
    if bundles.hyper_value(settings, task.ordinary[0], "alpha") <= 0:
        raise SettingsError("hyper.alpha", 0, "above 0 for per_fedavg, whose clients adapt with it")
    plain = settings.model_copy(update={"hyper": {"momentum": 0.0, **settings.hyper}})
    local_plan = plan(
        assemble(START, rule(source(download=GLOBAL))),
        train(settings, hyper=bundles.hyper_of(replace(task, settings=plain), "step")),
        train(settings, FINE_TUNED, program=FINE_TUNE, epochs=1, hyper=bundles.hyper_of(task, FINE_TUNE)),
        keeps=[keep(ADAPTED, FINE_TUNED)],
        uploads=[upload(settings, base=GLOBAL)],
        evaluations=[*EVALUATIONS, evaluate(FINE_TUNED)],
    )
    model = (rule(source(state=ADAPTED, download=GLOBAL)),)
    return sharing_global_set(task, local_plan, model=model, aggregate=with_plain_mean)
