"""Linear combinations of one tensor over clients, a chunk at a time, for arrays and stored tensors.

Here and in the methods, the *rows* of a tensor run along its first dimension: the output units of an FC layer or a
convolution. Sums are in float64 in the given order and cast to float32 once. A client of weight 0 is skipped, because
0 * NaN is NaN.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import NothingToAggregate, TensorSet, Update, span

# 64 Ki elements: sum and product, 512 KiB each in float64, stay in a core's L2 cache.
CHUNK = 1 << 16
# Sums over many clients do little work for each element. With smaller chunks, threads wait for Python's lock.
LARGE_CHUNK = 1 << 18
# One thread computes each element's sum, in the given order, so the number of threads changes no bit of the result.
THREADS = min(os.cpu_count() or 1, 4)
_helpers = ThreadPoolExecutor(max(THREADS - 1, 1), "fedlens-sum")

Float64s = NDArray[np.float64]


class LazyTensor(NamedTuple):
    """Elements of one tensor of a set, from `offset` in row-major order; a stored set is read in chunks."""

    tensors: TensorSet
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int = 0


Tensor = Array | LazyTensor


class Block(NamedTuple):
    """Elements `left` to `right` of rows `top` to `bottom` of a tensor: whole rows, or a part of one row."""

    top: int
    bottom: int
    left: int
    right: int


def uploaded(updates: Sequence[Update], name: str, like: Array) -> list[LazyTensor]:
    """One tensor of each upload of weights, with the shape and type of `like`."""
    return [LazyTensor(update.values[WEIGHTS], name, like.shape, like.dtype) for update in updates]


def in_order(updates: Sequence[Update]) -> list[Update]:
    """The updates ascending by client id: the order of all sums, whatever the order of arrival."""
    return sorted(updates, key=lambda update: update.client)


def with_photos(updates: Sequence[Update]) -> list[Update]:
    """The updates of clients that trained on photos, ascending by client id.

    Raises:
        NothingToAggregate: There are none.
    """
    found = [update for update in in_order(updates) if update.num_examples > 0]
    if not found:
        raise NothingToAggregate("no client trained on any photo")
    return found


def client_weights(counts: Sequence[int]) -> Float64s:
    """The weight of each client in a mean over photos, `n_k / n`, float64[clients].

    Raises:
        NothingToAggregate: The counts add up to 0.
    """
    n = sum(int(count) for count in counts)
    if n == 0:
        raise NothingToAggregate("no client trained on any photo")
    return np.array([int(count) / n for count in counts])


def linear_combination(
    tensors: Sequence[Tensor], weights: Float64s, *, out: Array | None = None, threads: int = THREADS
) -> NDArray[Any]:
    """The sum `sum_k weights[k] w_k`, or one with separate weights for each row.

    Args:
        tensors: One per client, all of one shape, float of any width. None is modified.
        weights: float64[clients] or float64[rows, clients]; a weight of 0 skips that client (in that row).
        out: float32 with room for the result, which is a view of it; None: a new array.
        threads: Most threads to compute with.

    Returns:
        float32 in the clients' shape.
    """
    shape = tensors[0].shape
    by_row = np.atleast_2d(weights)
    rows, columns = (by_row.shape[0], prod(shape) // by_row.shape[0]) if prod(shape) else (1, 0)
    result = (np.empty(rows * columns, np.float32) if out is None else out[: rows * columns]).reshape(rows, columns)
    clients, overall = np.flatnonzero(by_row.any(axis=0)).tolist(), by_row[0].tolist()

    def add_up(blocks: Iterable[Block]) -> None:
        room = min(chunk, rows * columns)
        total, product = np.empty(room), np.empty(room)
        buffer = np.empty(room, np.float32)
        for block in blocks:
            size, here = extent(block, columns)
            acc, term = total[: prod(size)].reshape(size), product[: prod(size)].reshape(size)
            acc.fill(0.0)
            for k in clients:
                np.copyto(term, read(tensors[k], *here, buffer).reshape(size))
                weight: Any = overall[k]
                if len(by_row) > 1:
                    weight = by_row[block.top : block.bottom, k, None]
                    term[weight[:, 0] == 0.0] = 0.0
                np.multiply(term, weight, out=term)
                np.add(acc, term, out=acc)
            result[block.top : block.bottom, block.left : block.right] = acc

    chunk = even_chunk(rows * columns, threads)
    in_threads(add_up, blocks_of(rows, columns, chunk), threads)
    return result.reshape(shape)


def maximum(tensors: Sequence[Tensor], counts: Sequence[int]) -> NDArray[Any]:
    """The elementwise maximum of integer buffers over the clients with photos, int64.

    Raises:
        NothingToAggregate: The counts add up to 0.
    """
    counted = [tensor for tensor, weight in zip(tensors, client_weights(counts), strict=True) if weight > 0]
    size = prod(counted[0].shape)
    result, buffer = np.empty(size, np.int64), np.empty(min(CHUNK, size), np.int64)
    for a in range(0, size, CHUNK):
        b = min(a + CHUNK, size)
        result[a:b] = read(counted[0], a, b, buffer)
        for tensor in counted[1:]:
            np.maximum(result[a:b], read(tensor, a, b, buffer), out=result[a:b])
    return result.reshape(counted[0].shape)


def read(tensor: Tensor, start: int, stop: int, buffer: Array) -> Array:
    """Elements `start` to `stop` in row-major order, possibly in `buffer`, which has room for them."""
    if isinstance(tensor, LazyTensor):
        return span(tensor.tensors, tensor.name, tensor.offset + start, tensor.offset + stop, buffer)
    return tensor.reshape(-1)[start:stop]


def blocks_of(rows: int, columns: int, chunk: int = CHUNK) -> list[Block]:
    """The blocks of a tensor, of at most `chunk` elements each: whole rows, or parts of one long row."""
    if columns <= chunk:
        step = chunk // max(columns, 1)
        return [Block(top, min(top + step, rows), 0, columns) for top in range(0, rows, step)]
    return [
        Block(row, row + 1, left, min(left + chunk, columns))
        for row in range(rows)
        for left in range(0, columns, chunk)
    ]


def even_chunk(size: int, threads: int = THREADS) -> int:
    """At most `LARGE_CHUNK` elements, so that every thread gets as many chunks of a tensor of `size` elements."""
    if size <= CHUNK:
        return CHUNK
    chunks = threads * -(-size // (threads * LARGE_CHUNK))
    return -(-size // chunks)


def in_threads(work: Callable[[Iterable[Block]], None], blocks: Sequence[Block], threads: int = THREADS) -> None:
    """Call `work` here and in helping threads, each of which takes the next block when it is done with one."""
    left = iter(blocks)
    helping = [_helpers.submit(work, left) for _ in range(min(threads, len(blocks)) - 1)]
    try:
        work(left)
    finally:
        # A helper that has not begun has nothing left to do.
        begun = [helper for helper in helping if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()


def extent(block: Block, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of a block, and the start and end of its elements in the tensor."""
    size = block.bottom - block.top, block.right - block.left
    start = block.top * columns + block.left
    return size, (start, start + size[0] * size[1])
