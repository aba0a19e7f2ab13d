"""FedAvg: the mean of the clients' weights, each counting by its photos.

Paper: McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.

    paper      here           meaning
    w_t        state[GLOBAL]  model that round t starts from
    S_t        updates        clients whose updates arrived
    w_{t+1}^k  tensors[k]     model of client k after its local plan
    n_k        counts[k]      photos that client k trained on in this round
    m_t        n              sum of n_k over S_t
    E          epochs         passes over a client's photos; or a number of steps

Deviations: integer buffers (BatchNorm's batch counter) take the maximum, as a mean of counts means nothing; a client
with n_k = 0 is skipped, since 0 * NaN is NaN. Sums are in float64 in order of client id and cast to float32 once, so
that a round's result is the same whatever the order in which updates came.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.weighted_mean import Tensor, in_order, maximum, sent, shares, weighted_sum
from fedlens_server.planning import fitting
from fedlens_server.planning.method import Phase, State, TaskPlan, TensorSet, Tools, Update

GLOBAL = "global"


def average(tensors: Sequence[Tensor], counts: Sequence[int]) -> NDArray[Any]:
    """The weighted mean of one tensor over clients, `sum_k (n_k / n) w_k`; of integers the maximum.

    Args:
        tensors: One a client, all of one shape; float (any width) or int64. None is modified.
        counts: Photos n_k >= 0 of each client; those with 0 are left out.

    Returns:
        float32, or int64 for integer tensors, in the clients' shape.

    Raises:
        NothingToAggregate: The counts add up to 0.

    Source: McMahan et al. 2017, arXiv:1602.05629, Algorithm 1, last line of the server's loop.
    """
    weights = shares(counts)
    return weighted_sum(tensors, weights) if tensors[0].dtype.kind == "f" else maximum(tensors, counts)


def average_set(updates: Sequence[Update], current: TensorSet) -> dict[str, Array]:
    """The mean of each tensor that `current` names, over all updates; they come in the order of `in_order`.

    Raises:
        NothingToAggregate: No client trained on any photo.
    """
    counts = [update.num_examples for update in updates]
    return {name: average(sent(updates, name, current[name]), counts) for name in current}


def with_mean(state: State, updates: Sequence[Update]) -> State:
    """The state with its global set replaced by the mean of the updates, in whatever order these came.

    Raises:
        NothingToAggregate: No client trained on any photo.
    """
    return {**state, GLOBAL: average_set(in_order(updates), state[GLOBAL])}


def initial_global(tools: Tools, names: Iterable[str]) -> State:
    """A state whose global set is these tensors of the bundle's initial weights."""
    return {GLOBAL: {name: tools.initial[name] for name in sorted(names)}}


def train_whole_model(task: TaskPlan, statistics: Sequence[pb.ClientStatistic] = ()) -> list[Phase]:
    """One phase: download the global model, train it, upload all of it, tell `statistics`.

    If the bundle's step has the reference `global`, it is bound to the download.
    """
    downloaded = pb.SetSource(download=GLOBAL)
    local_plan = pb.LocalPlan(
        start=[pb.StartRule(source=downloaded)],
        references=fitting.bound(task, GLOBAL, downloaded),
        stages=[task.settings.stage("step")],
        upload=task.settings.upload(GLOBAL),
        statistics=statistics,
        evaluation=pb.EvaluationPlan(at_start=True, at_end=True),
    )
    return [Phase(name="train", rounds=task.settings.rounds, cohort=task.settings.cohort_size, local_plan=local_plan)]


@dataclass(frozen=True)
class FedAvg:
    """Everyone trains the global model, which becomes the mean."""

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method for a task.

        Raises:
            SettingsError: It has options, of which this method takes none, or bundles that cannot be averaged.
        """
        fitting.need_options(task.settings, {})
        fitting.need_equal_bundles(task)
        return cls()

    def phases(self, task: TaskPlan) -> list[Phase]:
        """The one phase."""
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
