"""Weighted sums of one tensor over clients, a chunk at a time, whether the tensors are arrays or stored.

Here and in the methods, a tensor's *rows* run along its first dimension: the output units of an FC layer or a
convolution. Sums are in float64 in the order of clients and cast to float32 once. Clients whose share is 0 are not
counted in, as 0 * NaN is NaN.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_server.planning.method import NothingToAggregate, TensorSet, Update, span

# 64 Ki elements: sum and product, 512 KiB each in float64, stay in a core's L2 cache.
CHUNK = 1 << 16
# Each element's sum is made by one thread in the order of clients, so their number changes no bit of the result.
THREADS = min(os.cpu_count() or 1, 4)

Float64s = NDArray[np.float64]


@dataclass(frozen=True)
class Sent:
    """One tensor of a set, which is read only where it is needed."""

    tensors: TensorSet
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


Tensor = Array | Sent


class Block(NamedTuple):
    """Rows `top` to `bottom` of a tensor, of each the elements `left` to `right`; all of them or of one row a part."""

    top: int
    bottom: int
    left: int
    right: int


def sent(updates: Sequence[Update], name: str, like: Array) -> list[Sent]:
    """One tensor of each update, which has the shape and type of `like`."""
    return [Sent(update.tensors, name, like.shape, like.dtype) for update in updates]


def in_order(updates: Sequence[Update]) -> list[Update]:
    """Ascending by client id: the order of all sums, whichever update came first."""
    return sorted(updates, key=lambda update: update.client)


def shares(counts: Sequence[int]) -> Float64s:
    """`n_k / n`, float64[clients].

    Raises:
        NothingToAggregate: The counts add up to 0.
    """
    n = sum(int(count) for count in counts)
    if n == 0:
        raise NothingToAggregate("no client trained on any photo")
    return np.array([int(count) / n for count in counts])


def weighted_sum(tensors: Sequence[Tensor], weights: Float64s) -> NDArray[Any]:
    """`sum_k weights[k] w_k`, or with weights of its own for each row.

    Args:
        tensors: One a client, all of one shape, float of any width. None is modified.
        weights: float64[clients] or float64[rows, clients]; where one is 0 that client is not looked at.

    Returns:
        float32 in the clients' shape.
    """
    shape = tensors[0].shape
    by_row = np.atleast_2d(weights)
    rows, columns = (by_row.shape[0], prod(shape) // by_row.shape[0]) if prod(shape) else (1, 0)
    result = np.empty((rows, columns), np.float32)
    clients = [k for k in range(len(tensors)) if by_row[:, k].any()]

    def add_up(blocks: Sequence[Block]) -> None:
        room = largest(blocks)
        total, product = np.empty(room), np.empty(room)
        buffer = np.empty(room, np.float32)
        for block in blocks:
            size, here = extent(block, columns)
            acc, term = total[: prod(size)].reshape(size), product[: prod(size)].reshape(size)
            acc.fill(0.0)
            for k in clients:
                share = by_row[block.top : block.bottom, k, None]
                np.copyto(term, read(tensors[k], *here, buffer).reshape(size))
                if not share.all():
                    term[share[:, 0] == 0.0] = 0.0
                np.multiply(term, share, out=term)
                np.add(acc, term, out=acc)
            result[block.top : block.bottom, block.left : block.right] = acc

    in_threads(add_up, blocks_of(rows, columns))
    return result.reshape(shape)


def maximum(tensors: Sequence[Tensor], counts: Sequence[int]) -> NDArray[Any]:
    """The greatest of each element of integer buffers, int64; of clients with photos alone.

    Raises:
        NothingToAggregate: The counts add up to 0.
    """
    counted = [tensor for tensor, share in zip(tensors, shares(counts), strict=True) if share > 0]
    size = prod(counted[0].shape)
    result, buffer = np.empty(size, np.int64), np.empty(min(CHUNK, size), np.int64)
    for a in range(0, size, CHUNK):
        b = min(a + CHUNK, size)
        result[a:b] = read(counted[0], a, b, buffer)
        for tensor in counted[1:]:
            np.maximum(result[a:b], read(tensor, a, b, buffer), out=result[a:b])
    return result.reshape(counted[0].shape)


def read(tensor: Tensor, start: int, stop: int, buffer: Array) -> Array:
    """Elements `start` to `stop` in row-major order, perhaps in `buffer`, which has room for them."""
    if isinstance(tensor, Sent):
        return span(tensor.tensors, tensor.name, start, stop, buffer)
    return tensor.reshape(-1)[start:stop]


def blocks_of(rows: int, columns: int) -> list[Block]:
    """A tensor in blocks of at most `CHUNK` elements: of whole rows where those are short, else parts of one row."""
    if columns <= CHUNK:
        step = CHUNK // max(columns, 1)
        return [Block(top, min(top + step, rows), 0, columns) for top in range(0, rows, step)]
    return [
        Block(row, row + 1, left, min(left + CHUNK, columns))
        for row in range(rows)
        for left in range(0, columns, CHUNK)
    ]


def in_threads(work: Callable[[Sequence[Block]], None], blocks: Sequence[Block]) -> None:
    """Have `work` called with all blocks, shared out among threads; which one gets which must not matter to it."""
    threads = min(THREADS, len(blocks))
    if threads <= 1:
        work(blocks)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [blocks[i::threads] for i in range(threads)]))


def largest(blocks: Sequence[Block]) -> int:
    """Elements of the largest block."""
    return max(((b.bottom - b.top) * (b.right - b.left) for b in blocks), default=0)


def extent(block: Block, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of a block; and where its elements begin and end in the tensor."""
    size = block.bottom - block.top, block.right - block.left
    start = block.top * columns + block.left
    return size, (start, start + size[0] * size[1])
