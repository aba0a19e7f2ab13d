"""FedClassAvg: clients with different extractors share the classifier alone.

Paper: FedClassAvg, Algorithm 1, Equations 3 to 5.

    paper      here                      meaning
    C          shared[GLOBAL]            classifier at the start of round t; the reference `global` of the objective
    C_k        tensors[k]                classifier of client k after its local training
    F_k        client state `extractor`  extractor of client k, which never leaves it; at first its bundle's initial one
    |D_k|      counts[k]                 photos n_k of client k
    S          updates                   clients whose updates arrived; the denominator is the sum of their photos
    rho        hyper rho                 strength of the proximal term ||w_Ck - w_C||, in the bundle's step
               options.weight            "+weight": equal models, all tensors averaged

The clients' loss, SupCon(F(x'), F(x'')) + CE(C(F(x')), y) + rho R, is the bundle's objective: `supcon` or `supcon_raw`.
The paper's ablation leaves out terms: `classifier_proximal` has no contrast, `cross_entropy` is averaging alone, and a
hyper-parameter of 0 switches its term off.

Equation 3, the mean of the classifiers, is FedAvg's. Deviation: the authors' code draws clients per process, so that
10 of 100 become all 100; here the cohort is drawn from all clients.
"""

from fedlens_proto.manifest import INITIAL, objective, select
from fedlens_server.methods.fedavg import sharing_global_set, whole_model_plan
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import START, assemble, keep, plan, rule, source, train, upload
from fedlens_server.planning.method import GLOBAL, Method, TaskPlan
from fedlens_server.planning.task_settings import SettingsError

OPTIONS = {"weight": options.flag(default=False)}
OBJECTIVES = ("supcon", "supcon_raw", "classifier_proximal", "cross_entropy")
OWN_EXTRACTOR = "extractor"


def for_task(task: TaskPlan) -> Method:
    """FedClassAvg for a task. There is a global model with `weight`, and where the classifier is the whole model.

    Raises:
        SettingsError: The objective is none of this method's; classifiers differ, or any tensors with `weight`; or only
            some bundles have an extractor.
    """
    settings, first = task.settings, task.ordinary[0]
    weight = task.options["weight"]
    bundles.need_objective(task, OBJECTIVES)
    if weight:
        bundles.need_equal(task)
    bundles.need_equal_classifiers(task)
    has_extractor = bool(select(first.tensors, bundles.EXTRACTOR))
    for i, manifest in enumerate(task.ordinary):
        differs = bool(select(manifest.tensors, bundles.EXTRACTOR)) != has_extractor
        if differs or bundles.references(manifest) != bundles.references(first):
            allowed = "like the first bundle in having layers before the classifier and a reference or not"
            raise SettingsError(f"manifests[{i}]", f"model {manifest.model!r}, {objective(manifest)!r}", allowed)
    if weight:
        return sharing_global_set(task, whole_model_plan(task))
    shared, own = source(download=GLOBAL), source(state=OWN_EXTRACTOR, download=INITIAL)
    own_rules = [rule(own, bundles.EXTRACTOR)] if has_extractor else []
    local_plan = plan(
        assemble(START, rule(shared, bundles.CLASSIFIER), *own_rules),
        train(settings, bindings=bundles.bind(first, GLOBAL, shared)),
        keeps=[keep(OWN_EXTRACTOR, tensors=bundles.EXTRACTOR)] if has_extractor else [],
        uploads=[upload(settings, tensors=bundles.CLASSIFIER, base=GLOBAL)],
    )
    names = bundles.names(task, bundles.CLASSIFIER)
    return sharing_global_set(task, local_plan, names=names, has_model=not has_extractor)
