"""FedAvg: the mean of the clients' weights, weighted by their numbers of examples.

Paper: McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.

    paper      here           meaning
    w_t        shared[GLOBAL] model at the start of round t
    S_t        updates        clients whose updates arrived
    w_{t+1}^k  tensors[k]     model of client k after its local training
    n_k        counts[k]      photos that client k trained on in this round
    m_t        n              sum of n_k over S_t
    E          epochs         local epochs; a task may set a number of steps instead

Deviations: integer buffers (BatchNorm's batch counter) take the maximum, because a mean of counts has no meaning. A
client with n_k = 0 is skipped, because 0 * NaN is NaN. Sums are in float64 in the order of client ids and cast to
float32 once, so that the result of a round does not depend on the order of arrival.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.linear_combination import (
    Tensor,
    client_weights,
    in_order,
    linear_combination,
    maximum,
    uploaded,
)
from fedlens_server.planning import bundles
from fedlens_server.planning.local_plans import START, assemble, plan, rule, source, train, upload
from fedlens_server.planning.method import GLOBAL, Aggregate, Method, Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import Number


def average(tensors: Sequence[Tensor], counts: Sequence[int]) -> NDArray[Any]:
    """The weighted mean of one tensor over clients, `sum_k (n_k / n) w_k`; the maximum of integers.

    Args:
        tensors: One per client, all of one shape; float (any width) or int64. None is modified.
        counts: Photos n_k >= 0 of each client; clients with 0 are skipped.

    Returns:
        float32, or int64 for integer tensors, in the clients' shape.

    Raises:
        NothingToAggregate: The counts add up to 0.

    Source: McMahan et al. 2017, arXiv:1602.05629, Algorithm 1, last line of the server's loop.
    """
    if tensors[0].dtype.kind == "f":
        return linear_combination(tensors, client_weights(counts))
    return maximum(tensors, counts)


def average_set(updates: Sequence[Update], current: TensorSet) -> dict[str, Array]:
    """The mean over the updates of each tensor in `current`, in any order of arrival.

    Raises:
        NothingToAggregate: No client trained on any photo.
    """
    ordered = in_order(updates)
    counts = [update.num_examples for update in ordered]
    return {name: average(uploaded(ordered, name, current[name]), counts) for name in current}


def with_mean(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
    """The state with its global set replaced by the mean of the updates: FedAvg's aggregation.

    Raises:
        NothingToAggregate: No client trained on any photo.
    """
    return state.with_shared(**{GLOBAL: average_set(updates, state.shared[GLOBAL])})


def whole_model_plan(
    task: TaskPlan,
    download: str = GLOBAL,
    *,
    bindings: Iterable[pb.Binding] | None = None,
    hyper: Mapping[str, Number] | None = None,
    keeps: Iterable[pb.Keep] = (),
    statistics: Iterable[pb.Statistic] = (),
) -> pb.LocalPlan:
    """The local plan: download a model, train it, upload all of it.

    Args:
        task: The task.
        download: Name of the downloaded set.
        bindings: Sources of the objective's references; None: `global`, if it has it, is the start of the training.
        hyper: Hyper-parameters by name; None: the task's.
        keeps: New client state.
        statistics: What clients report.
    """
    settings = task.settings
    if bindings is None:
        bindings = bundles.bind(task.ordinary[0], GLOBAL, source(value=START))
    return plan(
        assemble(START, rule(source(download=download))),
        train(settings, hyper=hyper, bindings=bindings),
        keeps=keeps,
        uploads=[upload(settings, base=download)],
        statistics=statistics,
    )


def single_phase(
    task: TaskPlan, local_plan: pb.LocalPlan, model: tuple[pb.Rule, ...] | None = None
) -> tuple[Phase, ...]:
    """One phase of all rounds of the task; `model` as in `Phase`."""
    settings = task.settings
    return (Phase(name="train", rounds=settings.rounds, cohort=settings.cohort_size, plan=local_plan, model=model),)


def sharing_global_set(
    task: TaskPlan,
    local_plan: pb.LocalPlan,
    *,
    names: Iterable[str] | None = None,
    has_model: bool = True,
    model: tuple[pb.Rule, ...] | None = None,
    aggregate: Aggregate = with_mean,
) -> Method:
    """A method of one phase in which all clients download one set, `global`.

    Args:
        task: The task.
        local_plan: The local plan of all clients.
        names: The tensors of the set; None: the whole model.
        has_model: The set is a model that evaluators can evaluate.
        model: As in `Phase`.
        aggregate: The aggregation; FedAvg's by default.
    """

    def begin(phase: Phase, state: State, tools: Tools) -> State:
        initial = tools.initial if names is None else {name: tools.initial[name] for name in sorted(names)}
        return State(shared={GLOBAL: initial})

    def download(phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        return {GLOBAL: state.shared[GLOBAL]} if has_model or client is not None else None

    return Method(phases=single_phase(task, local_plan, model), begin=begin, download=download, aggregate=aggregate)


def for_task(task: TaskPlan) -> Method:
    """FedAvg for a task.

    Raises:
        SettingsError: The bundles cannot be averaged.
    """
    bundles.need_equal(task)
    return sharing_global_set(task, whole_model_plan(task))
