"""FedAvg: the mean of the clients' weights, each counting by its photos.

Paper: McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.

    paper      here           meaning
    w_t        state[GLOBAL]  model that round t starts from
    S_t        updates        clients whose updates arrived
    w_{t+1}^k  tensors[k]     model of client k after its local pass
    n_k        counts[k]      photos that client k trained on in this round
    m_t        n              sum of n_k over S_t
    E          epochs         passes over a client's photos; or a number of steps

Deviations: integer buffers (BatchNorm's batch counter) take the maximum, as a mean of counts means nothing; a client
with n_k = 0 is skipped, since 0 * NaN is NaN. Sums are in float64 in order of client id and cast to float32 once, so
that a round's result is the same whatever the order in which updates came.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.method import NothingToAggregate, Phase, State, TaskPlan, TensorSet, Tools, Update, span
from fedlens_server.task_settings import SettingsError

GLOBAL = "global"
# 64 Ki elements: sum and product, 512 KiB each in float64, stay in a core's L2 cache.
CHUNK = 1 << 16
# Each element's sum is made by one thread in the order of clients, so their number changes no bit of the result.
THREADS = min(os.cpu_count() or 1, 4)


def average(tensors: Sequence[Array], counts: Sequence[int]) -> NDArray[Any]:
    """The weighted mean of one tensor over clients, `sum_k (n_k / n) w_k`; of integers the maximum.

    Args:
        tensors: One array a client, all of one shape; float (any width) or int64. None is modified.
        counts: Photos n_k >= 0 of each client; those with 0 are left out.

    Returns:
        float32, or int64 for integer tensors, in the clients' shape.

    Raises:
        NothingToAggregate: The counts add up to 0.

    Source: McMahan et al. 2017, arXiv:1602.05629, Algorithm 1, last line of the server's loop.
    """
    shape = tensors[0].shape if tensors else ()
    flat = [np.reshape(tensor, -1) for tensor in tensors]
    is_float = not tensors or tensors[0].dtype.kind == "f"
    return _average(lambda k, a, b, _: flat[k][a:b], shape, counts, is_float)


def _average(
    read: Callable[[int, int, int, Array], Array], shape: tuple[int, ...], counts: Sequence[int], is_float: bool
) -> NDArray[Any]:
    """As `average`, reading elements a to b of client k's tensor by `read(k, a, b, buffer)`, each once."""
    n = sum(counts)
    if n == 0:
        raise NothingToAggregate("no client trained on any photo")
    counted = [(k, n_k / n) for k, n_k in enumerate(counts) if n_k > 0]
    size = prod(shape)
    result: NDArray[Any] = np.empty(size, np.float32 if is_float else np.int64)

    def sum_up(starts: range) -> None:
        total, product = np.empty(min(CHUNK, size)), np.empty(min(CHUNK, size))
        buffer = np.empty(min(CHUNK, size), result.dtype)
        for a in starts:
            b = min(a + CHUNK, size)
            if not is_float:
                result[a:b] = read(counted[0][0], a, b, buffer)
                for k, _ in counted[1:]:
                    np.maximum(result[a:b], read(k, a, b, buffer), out=result[a:b])
                continue
            acc, term = total[: b - a], product[: b - a]
            acc.fill(0.0)
            for k, share in counted:
                np.copyto(term, read(k, a, b, buffer))
                np.multiply(term, share, out=term)
                np.add(acc, term, out=acc)
            result[a:b] = acc

    threads = min(THREADS, -(-size // CHUNK))
    parts = [range(i * CHUNK, size, threads * CHUNK) for i in range(threads)]
    if threads == 1:
        sum_up(parts[0])
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(sum_up, parts))
    return result.reshape(shape)


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """One phase: download the global model, train it, upload all of it."""

    rounds: int
    cohort: int | None
    stage: pb.Stage
    upload: pb.Upload

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method with a task's settings.

        Raises:
            SettingsError: It has options, of which this method takes none, or bundles that cannot be averaged.
        """
        settings, first = task.settings, task.manifests[0]
        if settings.options:
            raise SettingsError(f"options.{min(settings.options)}", "set", "left out: fedavg has no options")
        for manifest in task.manifests[1:]:
            if manifest.tensors != first.tensors or manifest.initial != first.initial:
                raise SettingsError(
                    "manifests", "bundles with different tensors", "bundles with equal tensors for fedavg"
                )
        return cls(
            rounds=settings.rounds,
            cohort=settings.cohort_size,
            stage=settings.stage("step"),
            upload=settings.upload(GLOBAL),
        )

    def phases(self, task: TaskPlan) -> list[Phase]:
        """The one phase."""
        downloaded = pb.SetSource(download=GLOBAL)
        references = [
            pb.ReferenceBinding(name=reference.name, set=downloaded)
            for reference in task.manifests[0].references
            if reference.name == GLOBAL
        ]
        local_pass = pb.LocalPass(
            start=[pb.StartRule(source=downloaded)],
            references=references,
            stages=[self.stage],
            upload=self.upload,
            evaluation=pb.EvaluationPlan(at_start=True, at_end=True),
        )
        return [Phase(name="train", rounds=self.rounds, cohort=self.cohort, local_pass=local_pass)]

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The bundle's initial weights."""
        return {GLOBAL: tools.initial}

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet]:
        """The global model, for everyone."""
        return {GLOBAL: state[GLOBAL]}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The mean of the updates."""
        counts = [update.photo_count for update in updates]
        current: TensorSet = state[GLOBAL]

        def mean(name: str) -> Array:
            def read(k: int, a: int, b: int, buffer: Array) -> Array:
                return span(updates[k].tensors, name, a, b, buffer)

            return _average(read, current[name].shape, counts, current[name].dtype.kind == "f")

        return {**state, GLOBAL: {name: mean(name) for name in current}}
