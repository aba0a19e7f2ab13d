"""FedProx: FedAvg over clients that are held back to the model they were sent.

Paper: Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127, Algorithm 2.

    paper   here                 meaning
    w^t     state[GLOBAL]        model that round t starts from; the reference `global` of the step
    mu      hyper-parameter mu   strength of the proximal term, > 0
    h_k     the bundle's step    F_k(w) + mu/2 ||w - w^t||^2, objective `proximal`

Deviations: clients count by their photos, as in the comparisons of the papers that FedLens reproduces, not alike; the
local problem is solved by the task's epochs or steps, not to a given inexactness.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from fedlens_server.methods.fedavg import GLOBAL, train_whole_model, with_mean
from fedlens_server.planning import fitting
from fedlens_server.planning.method import Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import SettingsError

OBJECTIVE = "proximal"


@dataclass(frozen=True)
class FedProx:
    """Everyone trains the global model near itself; it becomes the mean."""

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method for a task.

        Raises:
            SettingsError: It has options, bundles without the proximal term or that cannot be averaged, or mu = 0.
        """
        fitting.need_options(task.settings, {})
        fitting.need_objective(task, [OBJECTIVE])
        fitting.need_equal_bundles(task)
        for manifest in task.ordinary:
            mu = fitting.hyper_value(task.settings, manifest, "mu")
            if mu <= 0:
                raise SettingsError("hyper.mu", f"{mu:g}", "above 0 for fedprox; with 0 it is fedavg")
        return cls()

    def phases(self, task: TaskPlan) -> list[Phase]:
        """The one phase; the reference `global` is the download."""
        return train_whole_model(task)

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The bundle's initial weights."""
        return {GLOBAL: tools.initial}

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet]:
        """The global model, for everyone."""
        return {GLOBAL: state[GLOBAL]}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The mean of the updates."""
        return with_mean(state, updates)
