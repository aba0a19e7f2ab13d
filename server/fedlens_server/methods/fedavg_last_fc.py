"""FedAvg+lastFC: FedAvg, but each class's row of the classifier is weighted by the photos of that class.

Paper: FedNS, section 3.2, Equation 4, Algorithm 2.

    paper      here                meaning
    w_t        shared[GLOBAL]      model at the start of round t
    S          updates             clients whose updates arrived
    n_k^c      class_counts[k, c]  photos of class c at client k
    n_k, n     counts[k], n        photos of client k; of all clients together
    n^c                            photos of class c of all clients together
    l = L                          the classifier: row c of its weight and entry c of its bias

Deviations: the printed `l < N` is a slip for `l < L`. The row of a class without photos (0/0) is weighted by `n_k / n`.
Layers before the classifier, BatchNorm and integer buffers are as in FedAvg.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.linear_combination import (
    Float64s,
    Tensor,
    client_weights,
    in_order,
    linear_combination,
    uploaded,
)
from fedlens_server.methods.fedavg import average, sharing_global_set, whole_model_plan
from fedlens_server.planning import bundles
from fedlens_server.planning.local_plans import CLASS_COUNTS
from fedlens_server.planning.method import GLOBAL, Method, Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import SettingsError


def class_weights(class_counts: ArrayLike, counts: Sequence[int]) -> Float64s:
    """The weight of each client in each class, `n_k^c / n^c`; `n_k / n` for a class without photos.

    Args:
        class_counts: Photos by client and class, int[clients, classes], each >= 0.
        counts: Photos n_k of each client.

    Returns:
        float64[classes, clients], each row adding up to 1.

    Raises:
        NothingToAggregate: There are no photos at all.

    Source: FedNS, Equation 4.
    """
    by_class = np.asarray(class_counts, np.int64).T
    totals = by_class.sum(axis=1, keepdims=True)
    return np.where(totals > 0, by_class / np.maximum(totals, 1), client_weights(counts))


def average_rows(tensors: Sequence[Tensor], class_counts: ArrayLike, counts: Sequence[int]) -> NDArray[Any]:
    """The classifier's weight or bias: `sum_k (n_k^c / n^c) w_k^c` for each row or entry c.

    Args:
        tensors: One per client, float[classes, ...]. None is modified.
        class_counts: Photos by client and class, int[clients, classes].
        counts: Photos n_k of each client.

    Returns:
        float32 in the clients' shape.

    Raises:
        NothingToAggregate: There are no photos at all.

    Source: FedNS, Algorithm 2, for l = L.
    """
    return linear_combination(tensors, class_weights(class_counts, counts))


def need_rows_of_classes(task: TaskPlan) -> frozenset[str]:
    """The names of the classifier's tensors, whose first dimension must be the class.

    Raises:
        SettingsError: A tensor has another first dimension.
    """
    classes = len(task.ordinary[0].class_names)
    for tensor in bundles.tensors(task, bundles.CLASSIFIER):
        if list(tensor.shape[:1]) != [classes]:
            found = f"classifier tensor {tensor.name} {list(tensor.shape)}"
            raise SettingsError("manifests[0]", found, f"one with a row for each of the {classes} classes")
    return bundles.names(task, bundles.CLASSIFIER)


def counting_plan(task: TaskPlan) -> pb.LocalPlan:
    """The local plan of FedAvg with the clients' class counts as a statistic."""
    return whole_model_plan(task, statistics=[CLASS_COUNTS])


def class_counts_of(updates: Sequence[Update]) -> NDArray[np.int64]:
    """The reported class counts, int64[clients, classes]."""
    return np.array([update.class_counts for update in updates], np.int64)


def aggregate(classifier: frozenset[str], phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
    """The state after a round: the mean of the updates, by class in the classifier."""
    ordered = in_order(updates)
    counts = [update.num_examples for update in ordered]
    class_counts = class_counts_of(ordered)
    current: TensorSet = state.shared[GLOBAL]

    def mean(name: str) -> Array:
        tensors = uploaded(ordered, name, current[name])
        return average_rows(tensors, class_counts, counts) if name in classifier else average(tensors, counts)

    return state.with_shared(**{GLOBAL: {name: mean(name) for name in current}})


def for_task(task: TaskPlan) -> Method:
    """FedAvg+lastFC for a task.

    Raises:
        SettingsError: The bundles cannot be averaged by class.
    """
    bundles.need_equal(task)
    return sharing_global_set(task, counting_plan(task), aggregate=partial(aggregate, need_rows_of_classes(task)))
