"""Local-only: every client trains a model of its own and sends none of it; what all other methods have to beat.

No paper. Each client starts from the bundle's initial weights, goes on from its own kept model in every later round,
and uploads nothing; the server keeps nothing. Bundles may differ in everything but the classes. An objective that
compares with the shared model is given the client's own as the pass starts: a pull towards it holds steps back, and
nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.planning import fitting
from fedlens_server.planning.method import Phase, State, TaskPlan, TensorSet, Tools, Update

KEPT = "model"


@dataclass(frozen=True)
class LocalOnly:
    """Everyone trains alone."""

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method for a task.

        Raises:
            SettingsError: It has options.
        """
        fitting.need_options(task.settings, {})
        return cls()

    def phases(self, task: TaskPlan) -> list[Phase]:
        """The one phase."""
        settings = task.settings
        local_plan = pb.LocalPlan(
            start=[pb.StartRule(source=pb.SetSource(kept=KEPT, download=INITIAL))],
            references=[pb.ReferenceBinding(name=each.name, start=True) for each in task.ordinary[0].references],
            stages=[settings.stage("step")],
            keep=[pb.Keep(set=KEPT)],
            evaluation=pb.EvaluationPlan(at_start=True, at_end=True),
        )
        return [Phase(name="train", rounds=settings.rounds, cohort=settings.cohort_size, local_plan=local_plan)]

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """Nothing."""
        return {}

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """Nothing but what the local plan names itself; there is no global model."""
        return None if client is None else {}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """Nothing changes."""
        return state
