"""FedAvg+lastFC: FedAvg, but each class's row of the classifier counts by the photos of that class.

Paper: FedNS, section 3.2, Equation 4, Algorithm 2.

    paper      here                meaning
    w_t        state[GLOBAL]       model that round t starts from
    S          updates             clients whose updates arrived
    n_k^c      class_counts[k, c]  photos of class c at client k
    n_k, n     counts[k], n        photos of client k; of all clients together
    n^c                            photos of class c of all clients together
    l = L                          the classifier: row c of its weight and entry c of its bias

Deviations: the printed `l < N` is a slip for `l < L`. Of a class that nobody has (0/0) the row counts by `n_k / n`.
Layers before the classifier, BatchNorm and integer buffers are as in FedAvg.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.weighted_mean import Float64s, Tensor, in_order, sent, shares, weighted_sum
from fedlens_server.methods.fedavg import GLOBAL, average, train_whole_model
from fedlens_server.planning import fitting
from fedlens_server.planning.method import Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import SettingsError


def class_shares(class_counts: ArrayLike, counts: Sequence[int] | None = None) -> Float64s:
    """`n_k^c / n^c`; of a class that nobody has, `n_k / n`.

    Args:
        class_counts: Photos by client and class, int[clients, classes], each >= 0.
        counts: Photos n_k of each client; None: the sums of its class counts.

    Returns:
        float64[classes, clients], each row adding up to 1.

    Raises:
        NothingToAggregate: There are no photos at all.

    Source: FedNS, Equation 4.
    """
    by_class = np.asarray(class_counts, np.int64).T
    of_all = shares(by_class.sum(axis=0).tolist() if counts is None else counts)
    totals = by_class.sum(axis=1, keepdims=True)
    return np.where(totals > 0, by_class / np.maximum(totals, 1), of_all)


def average_rows(
    tensors: Sequence[Tensor], class_counts: ArrayLike, counts: Sequence[int] | None = None
) -> NDArray[Any]:
    """The classifier's weight or bias: `sum_k (n_k^c / n^c) w_k^c` for each row or entry c.

    Args:
        tensors: One a client, float[classes, ...]. None is modified.
        class_counts: Photos by client and class, int[clients, classes].
        counts: Photos n_k of each client; None: the sums of its class counts.

    Returns:
        float32 in the clients' shape.

    Raises:
        NothingToAggregate: There are no photos at all.

    Source: FedNS, Algorithm 2, for l = L.
    """
    return weighted_sum(tensors, class_shares(class_counts, counts))


def need_rows_of_classes(task: TaskPlan) -> frozenset[str]:
    """Names of the classifier's tensors, whose first dimension is the class.

    Raises:
        SettingsError: It is not.
    """
    classifier = fitting.chosen(task, fitting.CLASSIFIER)
    classes = len(task.ordinary[0].class_names)
    for tensor in classifier:
        if list(tensor.shape[:1]) != [classes]:
            found = f"classifier tensor {tensor.name} {list(tensor.shape)}"
            raise SettingsError("manifests[0]", found, f"one with a row for each of the {classes} classes")
    return frozenset(tensor.name for tensor in classifier)


def train_and_count(task: TaskPlan) -> list[Phase]:
    """One phase, as in FedAvg, in which clients tell their class counts too."""
    return train_whole_model(task, statistics=[pb.ClientStatistic(class_counts=pb.ClassCounts())])


def class_counts_of(updates: Sequence[Update]) -> NDArray[np.int64]:
    """What the clients answered, int64[clients, classes]."""
    return np.array([update.class_counts for update in updates], np.int64)


@dataclass(frozen=True)
class FedAvgLastFC:
    """Everyone trains the global model and tells its class counts."""

    classifier: frozenset[str]  # names of tensors

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method for a task.

        Raises:
            SettingsError: It has options, or bundles that cannot be averaged by class.
        """
        fitting.need_options(task.settings, {})
        fitting.need_equal_bundles(task)
        return cls(classifier=need_rows_of_classes(task))

    def phases(self, task: TaskPlan) -> list[Phase]:
        """The one phase."""
        return train_and_count(task)

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The bundle's initial weights."""
        return {GLOBAL: tools.initial}

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet]:
        """The global model, for everyone."""
        return {GLOBAL: state[GLOBAL]}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The mean of the updates, by class where there are classes."""
        ordered = in_order(updates)
        counts = [update.num_examples for update in ordered]
        class_counts = class_counts_of(ordered)
        current: TensorSet = state[GLOBAL]

        def mean(name: str) -> Array:
            tensors = sent(ordered, name, current[name])
            return average_rows(tensors, class_counts, counts) if name in self.classifier else average(tensors, counts)

        return {**state, GLOBAL: {name: mean(name) for name in current}}
