"""Several models, the centres, each trained by a part of the clients: for FeSEM, IFCA and FedSoft.

    here                  meaning
    shared["centre-<k>"]  model of centre k, k = 0 .. K-1; also the download of that name

A centre that no client of the round trained stays as it is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_server.methods.arithmetic.linear_combination import (
    CHUNK,
    LazyTensor,
    Tensor,
    linear_combination,
    maximum,
    read,
)
from fedlens_server.planning.method import State, TensorSet


def centre(k: int) -> str:
    """The name of a centre."""
    return f"centre-{k}"


def centres_of(state: State, count: int) -> dict[str, TensorSet]:
    """The centres by name."""
    return {centre(k): state.shared[centre(k)] for k in range(count)}


def permuted(initial: TensorSet, count: int, generator: np.random.Generator) -> dict[str, TensorSet]:
    """Different centres: the first is the model; in others the entries of each matrix, or larger tensor, change places.

    Equal centres would have equal losses, so that all clients would choose the first one.
    """
    found = {centre(0): initial}
    for k in range(1, count):
        found[centre(k)] = {name: _shuffled(initial[name], generator) for name in sorted(initial)}
    return found


def _shuffled(tensor: Array, generator: np.random.Generator) -> Array:
    if tensor.ndim < 2:
        return tensor
    return generator.permutation(tensor.reshape(-1)).reshape(tensor.shape)


def weighted_mean(tensors: Sequence[Tensor], weights: Sequence[float]) -> NDArray[np.generic]:
    """The mean of one tensor over clients by any weights of 0 or more, some above 0; the maximum of integers.

    Returns:
        float32 or int64 in the clients' shape. A client of weight 0 is left out.
    """
    shares = np.asarray(weights, np.float64)
    if tensors[0].dtype.kind == "f":
        return linear_combination(tensors, shares / shares.sum())
    return maximum(tensors, [int(share > 0) for share in shares])


def mean_set(models: Sequence[TensorSet], weights: Sequence[float], like: TensorSet) -> TensorSet:
    """The weighted mean of models; `like` itself if all weights are 0."""
    if not any(weights):
        return like
    return {name: weighted_mean(lazily(models, name, like[name]), weights) for name in like}


def lazily(models: Sequence[TensorSet], name: str, like: Array) -> list[LazyTensor]:
    """One tensor of each model."""
    return [LazyTensor(model, name, like.shape, like.dtype) for model in models]


def squared_distances(model: TensorSet, centres: Sequence[TensorSet], like: Mapping[str, Array]) -> list[float]:
    """The squared L2 distance of a model to each centre, over all float tensors, in chunks and float64."""
    total = np.zeros(len(centres))
    for name in sorted(like):
        tensor = like[name]
        if tensor.dtype.kind != "f":
            continue
        (own,), others = lazily([model], name, tensor), lazily(centres, name, tensor)
        for start in range(0, tensor.size, CHUNK):
            stop = min(start + CHUNK, tensor.size)
            here = read(own, start, stop, np.empty(stop - start, np.float32)).astype(np.float64)
            for k, other in enumerate(others):
                difference = here - read(other, start, stop, np.empty(stop - start, np.float32))
                total[k] += float(difference @ difference)
    return [float(each) for each in total]


def nearest(distances: Sequence[float]) -> int:
    """The centre of least distance; ties: the lowest; one that is not finite never is."""
    known = np.asarray(distances, np.float64)
    return int(np.argmin(np.where(np.isfinite(known), known, np.inf)))
