"""FedClassAvg: clients with different extractors exchange the classifier alone.

Paper: FedClassAvg, Algorithm 1, Equations 3 to 5.

    paper      here              meaning
    C          state[GLOBAL]     classifier that round t starts from; the reference `global` of the step
    C_k        tensors[k]        classifier of client k after its local plan
    F_k        kept `extractor`  extractor of client k, which never leaves it; at first its own bundle's initial one
    |D_k|      counts[k]         photos n_k of client k
    S          updates           clients whose updates arrived; the denominator is their photos
    rho        hyper rho         strength of the proximal term ||w_Ck - w_C||, in the bundle's step
               options.weight    "+weight": equal models, of which all tensors are averaged

What a client minimises, SupCon(F(x'), F(x'')) + CE(C(F(x')), y) + rho R, is the bundle's objective: `supcon` or
`supcon_raw`. The paper's ablation leaves out terms: `classifier_proximal` has no contrast, `cross_entropy` is averaging
alone, and a hyper-parameter of 0 turns its term off.

Deviation: the authors' code draws clients per process, which makes 10 of 100 all 100; here the cohort is drawn over all
clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import NDArray

from fedlens_proto.manifest import INITIAL, select
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods import fedavg
from fedlens_server.methods.arithmetic.weighted_mean import Tensor
from fedlens_server.methods.fedavg import GLOBAL, initial_global, with_mean
from fedlens_server.planning import fitting
from fedlens_server.planning.method import Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import SettingsError

OPTIONS = {"weight": fitting.flag(default=False)}
OBJECTIVES = ("supcon", "supcon_raw", "classifier_proximal", "cross_entropy")
KEPT = "extractor"


def average(tensors: Sequence[Tensor], counts: Sequence[int]) -> NDArray[Any]:
    """One tensor of the classifier, `sum_k (n_k / n) C_k`: as in FedAvg.

    Args:
        tensors: One a client, all of one shape. None is modified.
        counts: Photos n_k of each client that takes part; those with 0 are left out.

    Returns:
        float32 in the clients' shape.

    Raises:
        NothingToAggregate: The counts add up to 0.

    Source: FedClassAvg, Equation 3.
    """
    return fedavg.average(tensors, counts)


@dataclass(frozen=True, kw_only=True)
class FedClassAvg:
    """Everyone trains an extractor of its own with the shared classifier, which becomes the mean."""

    weight: bool
    has_extractor: bool
    classifier: frozenset[str]  # names of tensors

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method for a task.

        Raises:
            SettingsError: An option is not allowed; the objective is none of this method's; classifiers differ, or,
                with weight, anything else; or only some bundles have an extractor.
        """
        weight = fitting.need_options(task.settings, OPTIONS)["weight"]
        fitting.need_objective(task, OBJECTIVES)
        if weight:
            fitting.need_equal_bundles(task)
        fitting.need_equal_classifiers(task)
        first = task.ordinary[0]
        has_extractor = bool(select(first.tensors, fitting.EXTRACTOR))
        for i, manifest in enumerate(task.ordinary):
            differs = bool(select(manifest.tensors, fitting.EXTRACTOR)) != has_extractor
            if differs or {r.name for r in manifest.references} != {r.name for r in first.references}:
                allowed = "like the first bundle in having layers before the classifier and a reference or not"
                raise SettingsError(f"manifests[{i}]", f"model {manifest.model!r}, {manifest.objective!r}", allowed)
        classifier = frozenset(tensor.name for tensor in fitting.chosen(task, fitting.CLASSIFIER))
        return cls(weight=weight, has_extractor=has_extractor, classifier=classifier)

    def phases(self, task: TaskPlan) -> list[Phase]:
        """The one phase."""
        if self.weight:
            return fedavg.train_whole_model(task)
        settings = task.settings
        downloaded = pb.SetSource(download=GLOBAL)
        local_plan = pb.LocalPlan(
            start=[
                pb.StartRule(tensors=fitting.CLASSIFIER, source=downloaded),
                pb.StartRule(tensors=fitting.EXTRACTOR, source=pb.SetSource(kept=KEPT, download=INITIAL)),
            ],
            references=fitting.bound(task, GLOBAL, downloaded),
            stages=[settings.stage("step")],
            keep=[pb.Keep(set=KEPT, tensors=fitting.EXTRACTOR)],
            upload=settings.upload(GLOBAL, fitting.CLASSIFIER),
            evaluation=pb.EvaluationPlan(at_start=True, at_end=True),
        )
        if not self.has_extractor:
            del local_plan.start[1:], local_plan.keep[:]
        return [Phase(name="train", rounds=settings.rounds, cohort=settings.cohort_size, local_plan=local_plan)]

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The initial classifier of the first bundle; with weight, its whole model."""
        if self.weight:
            return {GLOBAL: tools.initial}
        return initial_global(tools, self.classifier)

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The classifier; a global model is there with weight, or where the classifier is all that is exchanged."""
        has_global = self.weight or not self.has_extractor
        return {GLOBAL: state[GLOBAL]} if client is not None or has_global else None

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The mean of the classifiers; with weight, of all tensors."""
        return with_mean(state, updates)
