"""FedNS: each node counts by how differently its weights moved; who moved strangely is left out.

Paper: FedNS, section 3.3, Equations 5 and 6, Algorithm 3. A node is one output unit of a layer: a row of an FC weight,
an output channel of a convolution.

    paper        here                 meaning
    w_t[l, c]    previous[c]          node c of the model that clients were sent
    w_k[l, c]    weights[k][c]        the same at client k after its local plan
    v_k          variances[c, k]      population variance of the elements of w_k[l, c] - w_t[l, c], without the bias
    mu, sigma                         mean and population deviation of v_k over the participants, for each node
    A            kept[c, k]           |v_k - mu| <= 2 sigma
                 coefficients[c, k]   v_k / sum_A v, 0 outside of A
    n_k, n       counts[k], n         photos of client k; of all clients together

The bias of a node takes its coefficients. The last layer is as in FedAvg+lastFC.

Deviations:
- The difference is to the model that was sent, as the text says, with what its encoding lost; the printed `w_{k,t-1}`
  is impossible when participants change.
- BatchNorm's affine parameters and statistics count by `n_k / n`: one value a channel has variance 0.
- Where the sum of v over A is 0 (nobody moved, or all by a constant), a node counts by `n_k / n` over A; if rounding
  left nobody in A, over all.
- The interval has a slack of 1e-9, relative to its upper end, so that rounding excludes nobody at its ends; and a
  variance that is no more than the rounding of the weights themselves is taken as 0.
- A client without photos is no participant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.manifest import select
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods.arithmetic.weighted_mean import (
    CHUNK,
    Block,
    Float64s,
    Sent,
    Tensor,
    blocks_of,
    extent,
    in_order,
    in_threads,
    largest,
    read,
    sent,
    shares,
    weighted_sum,
)
from fedlens_server.methods.fedavg import GLOBAL, average
from fedlens_server.methods.fedavg_last_fc import (
    average_rows,
    class_counts_of,
    need_rows_of_classes,
    train_and_count,
)
from fedlens_server.planning import fitting
from fedlens_server.planning.method import Phase, State, TaskPlan, TensorSet, Tools, Update

SLACK = 1e-9
# Rounding of a mean in float64, far above that of one sum.
LEAST_ROUNDING = 16 * np.finfo(np.float64).eps


def node_variances(weights: Sequence[Tensor], previous: Tensor) -> Float64s:
    """`v_k` of every node.

    Args:
        weights: One a client, float[nodes, ...], all of one shape. None is modified.
        previous: The same of the model that clients were sent.

    Returns:
        float64[nodes, clients]; 0 where rounding explains it all.

    Source: FedNS, Equation 5.
    """
    nodes, columns = previous.shape[0], prod(previous.shape[1:])
    parts = max(1, -(-columns // CHUNK))
    sums, squares = np.zeros((nodes, parts, len(weights))), np.zeros((nodes, parts, len(weights)))
    scale = np.zeros((nodes, parts))

    def measure(blocks: Sequence[Block]) -> None:
        room = largest(blocks)
        before, moved, buffer = np.empty(room), np.empty(room), np.empty(room, np.float32)
        for block in blocks:
            size, here = extent(block, columns)
            at = slice(block.top, block.bottom), block.left // CHUNK if parts > 1 else 0
            old, d = before[: prod(size)].reshape(size), moved[: prod(size)].reshape(size)
            np.copyto(old, read(previous, *here, buffer).reshape(size))
            scale[at] = np.einsum("ij,ij->i", old, old)
            for k, tensor in enumerate(weights):
                np.copyto(d, read(tensor, *here, buffer).reshape(size))
                np.subtract(d, old, out=d)
                sums[*at, k] = np.add.reduce(d, axis=1)
                np.subtract(d, (sums[*at, k] / size[1])[:, None], out=d)
                squares[*at, k] = np.einsum("ij,ij->i", d, d)

    in_threads(measure, blocks_of(nodes, columns))
    lengths = np.array([min(CHUNK, columns - i * CHUNK) for i in range(parts)], np.float64)[:, None]
    means = sums.sum(axis=1) / columns
    # Squares were about the mean of each part; the parts' own distances from the node's mean come on top.
    apart = lengths * (sums / lengths - means[:, None]) ** 2
    found = (squares.sum(axis=1) + (apart.sum(axis=1) if parts > 1 else 0.0)) / columns
    rounding = max(LEAST_ROUNDING, *(float(np.finfo(t.dtype).eps) for t in (previous, *weights)))
    noise = rounding**2 * (scale.sum(axis=1, keepdims=True) / columns + means**2)
    return np.where(found <= noise, 0.0, found)


def keep(variances: Float64s) -> NDArray[np.bool_]:
    """`A` of every node: who lies within two deviations of the mean.

    Args:
        variances: float64[nodes, clients].

    Returns:
        bool[nodes, clients].

    Source: FedNS, section 3.3, "filtering".
    """
    mean = variances.mean(axis=1, keepdims=True)
    reach = 2.0 * variances.std(axis=1, keepdims=True)
    kept: NDArray[np.bool_] = np.abs(variances - mean) <= reach + SLACK * (mean + reach)
    return kept | ~kept.any(axis=1, keepdims=True)


def coefficients(variances: Float64s, counts: Sequence[int]) -> Float64s:
    """The share of each client in every node.

    Args:
        variances: float64[nodes, clients].
        counts: Photos n_k of each client; those with 0 take no part.

    Returns:
        float64[nodes, clients], each row adding up to 1.

    Raises:
        NothingToAggregate: The counts add up to 0.

    Source: FedNS, Equation 6.
    """
    by_count = shares(counts)
    takes_part = by_count > 0
    found = np.zeros(variances.shape)
    v, n = variances[:, takes_part], by_count[takes_part]
    kept = keep(v)
    v, n = np.where(kept, v, 0.0), np.where(kept, n, 0.0)
    of_v, of_n = v.sum(axis=1, keepdims=True), n.sum(axis=1, keepdims=True)
    found[:, takes_part] = np.where(of_v > 0, v / np.where(of_v > 0, of_v, 1.0), n / of_n)
    return found


def average_nodes(
    weights: Sequence[Tensor], biases: Sequence[Tensor] | None, previous: Tensor, counts: Sequence[int]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Weight and bias of a layer before the last: `sum_A (v_k / sum_A v) w_k[l, c]` for every node c.

    Args:
        weights: One a client, float[nodes, ...], all of one shape. None is modified.
        biases: One a client, float[nodes]; None: the layer has none.
        previous: The weight of the model that clients were sent.
        counts: Photos n_k of each client; those with 0 take no part.

    Returns:
        float32 in the clients' shapes; None for a bias that the layer has not.

    Raises:
        NothingToAggregate: The counts add up to 0.

    Source: FedNS, Algorithm 3, for l < L.
    """
    shares(counts)
    counted = [k for k, n_k in enumerate(counts) if n_k > 0]
    chosen = [weights[k] for k in counted]
    by_node = coefficients(node_variances(chosen, previous), [counts[k] for k in counted])
    bias = None if biases is None else weighted_sum([biases[k] for k in counted], by_node)
    return weighted_sum(chosen, by_node), bias


@dataclass(frozen=True)
class FedNS:
    """Everyone trains the global model and tells its class counts."""

    classifier: frozenset[str]  # names of tensors
    layers: tuple[tuple[str, str | None], ...]  # names of weight and bias of the layers before

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method for a task.

        Raises:
            SettingsError: It has options, or bundles that cannot be averaged by class.
        """
        fitting.need_options(task.settings, {})
        fitting.need_equal_bundles(task)
        return cls(classifier=need_rows_of_classes(task), layers=_layers(task.ordinary[0]))

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
        """By node in the layers before the last, by class in the last, by photos in all else."""
        ordered = in_order(updates)
        counts = [update.num_examples for update in ordered]
        class_counts = class_counts_of(ordered)
        current: TensorSet = state[GLOBAL]
        found: dict[str, Array] = {}

        def of(name: str) -> list[Sent]:
            return sent(ordered, name, current[name])

        for weight, bias in self.layers:
            weights = of(weight)
            # One for all of them, as `download` gives everyone the same.
            previous = replace(weights[0], tensors=ordered[0].sent[GLOBAL])
            new, new_bias = average_nodes(weights, of(bias) if bias else None, previous, counts)
            found[weight] = new
            if bias is not None and new_bias is not None:
                found[bias] = new_bias
        for name in current.keys() - found.keys():
            by_class = name in self.classifier
            found[name] = average_rows(of(name), class_counts, counts) if by_class else average(of(name), counts)
        return {**state, GLOBAL: {name: found[name] for name in current}}


def _layers(manifest: manifest_pb2.Manifest) -> tuple[tuple[str, str | None], ...]:
    """Weights of convolutions and FC layers before the last, each with the bias beside it; None: it has none."""
    kinds = (manifest_pb2.TENSOR_KIND_CONV, manifest_pb2.TENSOR_KIND_LINEAR)
    extractor = {t.name: t for t in select(manifest.tensors, fitting.EXTRACTOR) if t.kind in kinds}
    found: list[tuple[str, str | None]] = []
    for name, tensor in extractor.items():
        if len(tensor.shape) >= 2:
            bias = name.rpartition("weight")[0] + "bias"
            has_bias = bias in extractor and list(extractor[bias].shape) == list(tensor.shape[:1])
            found.append((name, bias if has_bias else None))
    return tuple(found)
