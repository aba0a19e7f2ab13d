"""FedRep: as FedPer, but each client trains its classifier first and the extractor after it.

Paper: Collins et al., ICML 2021, https://arxiv.org/abs/2102.07078, Algorithm 1.

    paper      here                        meaning
    phi        state[GLOBAL]               representation: the extractor
    h_i        kept `classifier`           head of client i, which never leaves it
    tau        options.classifier_epochs   head updates, with the extractor frozen: first stage
               epochs or steps             representation updates, with the classifier frozen: second stage

Deviations: clients count by their photos, as in the comparisons of the papers that FedLens reproduces, not alike; the
head is trained for epochs, not steps. Frozen is a learning rate of 0; optimiser state starts anew in each stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.fedavg import GLOBAL, initial_global, with_mean
from fedlens_server.methods.fedper import extractor_tensors, need_shared_extractor, train_with_own_classifier
from fedlens_server.planning import fitting
from fedlens_server.planning.method import Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import SettingsError, TaskSettings

OPTIONS = {"classifier_epochs": fitting.whole(1, 1_000_000, default=1)}
RATE = {"classifier": "lr_classifier", "extractor": "lr_extractor"}


@dataclass(frozen=True)
class FedRep:
    """Everyone trains a classifier of its own on the shared extractor, then the extractor under it."""

    extractor: frozenset[str]  # names of tensors
    classifier_epochs: int

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method for a task.

        Raises:
            SettingsError: An option is not allowed; the bundles' extractors cannot be averaged or their learning rates
                not be set; or a learning rate is 0, so that a stage would train nothing.
        """
        options = fitting.need_options(task.settings, OPTIONS)
        need_shared_extractor(task)
        fitting.need_hyper(task, *RATE.values())
        for rate in RATE.values():
            if fitting.hyper_value(task.settings, task.ordinary[0], rate) <= 0:
                raise SettingsError(f"hyper.{rate}", 0, "above 0 for fedrep, which freezes each part in turn itself")
        return cls(extractor=extractor_tensors(task), classifier_epochs=options["classifier_epochs"])

    def phases(self, task: TaskPlan) -> list[Phase]:
        """The one phase, of two stages."""
        first = pb.Stage(
            program="step", epochs=self.classifier_epochs, hyper_values=_with_frozen(task.settings, "extractor")
        )
        second = task.settings.stage("step")
        del second.hyper_values[:]
        second.hyper_values.extend(_with_frozen(task.settings, "classifier"))
        return train_with_own_classifier(task, [first, second])

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The bundle's initial extractor."""
        return initial_global(tools, self.extractor)

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The extractor; there is no global model."""
        return None if client is None else {GLOBAL: state[GLOBAL]}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The mean of the extractors."""
        return with_mean(state, updates)


def _with_frozen(settings: TaskSettings, role: str) -> list[pb.HyperValue]:
    """The task's hyper-parameters, but a learning rate of 0 for one role; ascending by name."""
    values = {**settings.hyper, RATE[role]: 0.0}
    return [pb.HyperValue(name=name, value=value) for name, value in sorted(values.items())]
