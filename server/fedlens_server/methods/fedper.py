"""FedPer: the extractor is everyone's, the classifier each client's own.

Paper: Arivazhagan et al. 2019, https://arxiv.org/abs/1912.00818, Algorithms 1 and 2.

    paper    here               meaning
    W_B      state[GLOBAL]      base layers: the extractor, averaged by photos
    W_P_j    kept `classifier`  personalisation layers of client j, which never leave it
    gamma_j  n_j / n            share of client j in the mean

The classifier is the last FC layer, K_P = 1 in the paper's notation. A client that has kept nothing yet starts from the
bundle's initial classifier.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.fedavg import GLOBAL, initial_global, with_mean
from fedlens_server.planning import fitting
from fedlens_server.planning.method import Phase, State, TaskPlan, TensorSet, Tools, Update

KEPT = "classifier"


def need_shared_extractor(task: TaskPlan) -> None:
    """See that bundles have an extractor that can be averaged, and a step that wants nothing but weights.

    Raises:
        SettingsError: They have not.
    """
    fitting.need_no_references(task)
    fitting.need_equal_bundles(task)
    fitting.need_tensors(task, fitting.EXTRACTOR, "layers before the classifier")


def extractor_tensors(task: TaskPlan) -> frozenset[str]:
    """Names of the tensors before the classifier."""
    return frozenset(tensor.name for tensor in fitting.chosen(task, fitting.EXTRACTOR))


def train_with_own_classifier(task: TaskPlan, stages: Sequence[pb.Stage]) -> list[Phase]:
    """One phase: download the extractor, train it with the kept classifier, keep that and upload the extractor."""
    settings = task.settings
    local_plan = pb.LocalPlan(
        start=[
            pb.StartRule(tensors=fitting.EXTRACTOR, source=pb.SetSource(download=GLOBAL)),
            pb.StartRule(tensors=fitting.CLASSIFIER, source=pb.SetSource(kept=KEPT, download=INITIAL)),
        ],
        stages=stages,
        keep=[pb.Keep(set=KEPT, tensors=fitting.CLASSIFIER)],
        upload=settings.upload(GLOBAL, fitting.EXTRACTOR),
        evaluation=pb.EvaluationPlan(at_start=True, at_end=True),
    )
    return [Phase(name="train", rounds=settings.rounds, cohort=settings.cohort_size, local_plan=local_plan)]


@dataclass(frozen=True)
class FedPer:
    """Everyone trains the shared extractor together with a classifier of its own."""

    extractor: frozenset[str]  # names of tensors

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method for a task.

        Raises:
            SettingsError: It has options, or bundles whose extractors cannot be averaged.
        """
        fitting.need_options(task.settings, {})
        need_shared_extractor(task)
        return cls(extractor=extractor_tensors(task))

    def phases(self, task: TaskPlan) -> list[Phase]:
        """The one phase."""
        return train_with_own_classifier(task, [task.settings.stage("step")])

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The bundle's initial extractor."""
        return initial_global(tools, self.extractor)

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The extractor; there is no global model."""
        return None if client is None else {GLOBAL: state[GLOBAL]}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The mean of the extractors."""
        return with_mean(state, updates)
