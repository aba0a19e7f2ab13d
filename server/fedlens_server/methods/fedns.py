"""FedNS: each node is weighted by the variance of its change; outliers are left out.

Paper: FedNS, section 3.3, Equations 5 and 6, Algorithm 3. A node is one output unit of a layer: a row of an FC weight,
an output channel of a convolution.

    paper        here                 meaning
    w_t[l, c]    previous[c]          node c of the downloaded model
    w_k[l, c]    weights[k][c]        the same at client k after its local training
    v_k          variances[c, k]      population variance of the elements of w_k[l, c] - w_t[l, c], without the bias
    mu, sigma                         mean and population deviation of v_k over the participants, for each node
    A            kept[c, k]           |v_k - mu| <= 2 sigma
                 coefficients[c, k]   v_k / sum_A v, 0 outside of A
    n_k, n       counts[k], n         photos of client k; of all clients together

The bias of a node has the node's coefficients. The last layer is as in FedAvg+lastFC.

Deviations:
- The difference is to the downloaded model as the text says, decoded as the client decoded it; the printed `w_{k,t-1}`
  is impossible when participants change.
- BatchNorm's affine parameters and statistics are weighted by `n_k / n`: one value per channel has variance 0.
- Where the sum of v over A is 0 (no weights moved, or all moved by a constant), a node is weighted by `n_k / n` over A;
  over all participants if rounding left A empty.
- The interval has a slack of 1e-9, relative to its upper end, so that rounding excludes no client at its ends. A
  variance no larger than the rounding of the weights themselves is taken as 0.
- A client without photos is no participant.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.manifest import select
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods.arithmetic.linear_combination import (
    CHUNK,
    Block,
    Float64s,
    LazyTensor,
    Tensor,
    blocks_of,
    client_weights,
    even_chunk,
    extent,
    in_order,
    in_threads,
    linear_combination,
    read,
    uploaded,
)
from fedlens_server.methods.fedavg import average, sharing_global_set
from fedlens_server.methods.fedavg_last_fc import average_rows, class_counts_of, counting_plan, need_rows_of_classes
from fedlens_server.planning import bundles
from fedlens_server.planning.method import GLOBAL, Method, Phase, State, TaskPlan, TensorSet, Tools, Update

Layers = Sequence[tuple[str, str | None]]  # names of weight and bias
SLACK = 1e-9
# Rounding of a mean in float64, far above that of one sum.
LEAST_ROUNDING = 16 * np.finfo(np.float64).eps


def node_variances(weights: Sequence[Tensor], previous: Tensor) -> Float64s:
    """The variances `v_k` of every node.

    Args:
        weights: One per client, float[nodes, ...], all of one shape. None is modified.
        previous: The same tensor of the downloaded model.

    Returns:
        float64[nodes, clients]; 0 where the variance is no more than rounding.

    Source: FedNS, Equation 5.
    """
    nodes, columns = previous.shape[0], prod(previous.shape[1:])
    parts = max(1, -(-columns // CHUNK))
    sums, squares = np.zeros((nodes, parts, len(weights))), np.zeros((nodes, parts, len(weights)))
    scale = np.zeros((nodes, parts))
    chunk = even_chunk(nodes * columns) if parts == 1 else CHUNK

    def measure(blocks: Iterable[Block]) -> None:
        room = min(chunk, nodes * columns)
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

    in_threads(measure, blocks_of(nodes, columns, chunk))
    lengths = np.array([min(CHUNK, columns - i * CHUNK) for i in range(parts)], np.float64)[:, None]
    means = sums.sum(axis=1) / columns
    # The squares are about the mean of each part; add the distances of those means from the node's mean.
    apart = lengths * (sums / lengths - means[:, None]) ** 2
    found = (squares.sum(axis=1) + (apart.sum(axis=1) if parts > 1 else 0.0)) / columns
    rounding = max(LEAST_ROUNDING, *(float(np.finfo(t.dtype).eps) for t in (previous, *weights)))
    noise = rounding**2 * (scale.sum(axis=1, keepdims=True) / columns + means**2)
    return np.where(found <= noise, 0.0, found)


def keep(variances: Float64s) -> NDArray[np.bool_]:
    """The set `A` of every node: the clients within two deviations of the mean.

    Args:
        variances: float64[nodes, clients].

    Returns:
        bool[nodes, clients].

    Source: FedNS, section 3.3, "filtering".
    """
    mean = variances.mean(axis=1, keepdims=True)
    radius = 2.0 * variances.std(axis=1, keepdims=True)
    kept: NDArray[np.bool_] = np.abs(variances - mean) <= radius + SLACK * (mean + radius)
    return kept | ~kept.any(axis=1, keepdims=True)


def coefficients(variances: Float64s, counts: Sequence[int]) -> Float64s:
    """The weight of each client in every node.

    Args:
        variances: float64[nodes, clients].
        counts: Photos n_k of each client, at least one.

    Returns:
        float64[nodes, clients], each row adding up to 1.

    Raises:
        NothingToAggregate: There are no clients.

    Source: FedNS, Equation 6.
    """
    by_count = client_weights(counts)
    kept = keep(variances)
    v, n = np.where(kept, variances, 0.0), np.where(kept, by_count, 0.0)
    of_v, of_n = v.sum(axis=1, keepdims=True), n.sum(axis=1, keepdims=True)
    return np.where(of_v > 0, v / np.where(of_v > 0, of_v, 1.0), n / of_n)


def average_nodes(
    weights: Sequence[Tensor], biases: Sequence[Tensor] | None, previous: Tensor, counts: Sequence[int]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Weight and bias of a layer before the last: `sum_A (v_k / sum_A v) w_k[l, c]` for every node c.

    Args:
        weights: One per client, float[nodes, ...], all of one shape. None is modified.
        biases: One per client, float[nodes]; None: the layer has none.
        previous: The weight in the downloaded model.
        counts: Photos n_k of each client; clients with 0 do not take part.

    Returns:
        float32 in the clients' shapes; None for a missing bias.

    Raises:
        NothingToAggregate: The counts add up to 0.

    Source: FedNS, Algorithm 3, for l < L.
    """
    counted = [k for k, n_k in enumerate(counts) if n_k > 0]
    chosen = [weights[k] for k in counted]
    by_node = coefficients(node_variances(chosen, previous), [counts[k] for k in counted])
    bias = None if biases is None else linear_combination([biases[k] for k in counted], by_node)
    return linear_combination(chosen, by_node), bias


def aggregate(
    classifier: frozenset[str],
    layers: Layers,
    phase: Phase,
    state: State,
    updates: Sequence[Update],
    tools: Tools,
) -> State:
    """The state after a round: by node in the layers before the last, by class in the last, else by examples."""
    ordered = in_order(updates)
    counts = [update.num_examples for update in ordered]
    class_counts = class_counts_of(ordered)
    current: TensorSet = state.shared[GLOBAL]
    new: dict[str, Array] = {}

    def tensors(name: str) -> list[LazyTensor]:
        return uploaded(ordered, name, current[name])

    for weight, bias in layers:
        weights = tensors(weight)
        # One for all clients, because `download` gives everyone the same set.
        previous = weights[0]._replace(tensors=ordered[0].sent[GLOBAL])
        new[weight], mean_bias = average_nodes(weights, tensors(bias) if bias else None, previous, counts)
        if bias is not None and mean_bias is not None:
            new[bias] = mean_bias
    for name in current.keys() - new.keys():
        by_class = name in classifier
        new[name] = average_rows(tensors(name), class_counts, counts) if by_class else average(tensors(name), counts)
    return state.with_shared(**{GLOBAL: {name: new[name] for name in current}})


def for_task(task: TaskPlan) -> Method:
    """FedNS for a task.

    Raises:
        SettingsError: The bundles cannot be averaged by class.
    """
    bundles.need_equal(task)
    rule = partial(aggregate, need_rows_of_classes(task), _layers(task.ordinary[0]))
    return sharing_global_set(task, counting_plan(task), aggregate=rule)


def _layers(manifest: manifest_pb2.Manifest) -> Layers:
    """The weights of convolutions and FC layers before the last, each with its layer's bias; None: no bias."""
    kinds = (manifest_pb2.TENSOR_KIND_CONV, manifest_pb2.TENSOR_KIND_LINEAR)
    extractor = {t.name: t for t in select(manifest.tensors, bundles.EXTRACTOR) if t.kind in kinds}
    found: list[tuple[str, str | None]] = []
    for name, tensor in extractor.items():
        if len(tensor.shape) >= 2:
            bias = name.rpartition("weight")[0] + "bias"
            has_bias = bias in extractor and list(extractor[bias].shape) == list(tensor.shape[:1])
            found.append((name, bias if has_bias else None))
    return found
