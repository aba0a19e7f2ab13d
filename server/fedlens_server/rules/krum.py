"""Krum: the updates that lie closest to the others go on.

Paper: Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017, section 4, the variant Multi-Krum with m = n - f.

    paper    here        meaning
    n        known       clients that trained on photos
    f        f           bad ones among them that it withstands; n >= 2 f + 3
    V_i      change      of all float tensors as one vector
    s(i)     scores      squared distances to the n - f - 2 closest others, added up

Deviations: f are left out whether they are bad or not, so being left out says nothing of a client.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import GLOBAL, NothingToAggregate, Update, span

_ROOM = 1 << 20  # elements of all changes that are in memory at a time
_LEAST = 1 << 10  # of one change
_SQUARABLE = 1e15  # sums of squares of this many elements are far from the end of float32
_THREADS = min(os.cpu_count() or 1, 4)
Float64s = NDArray[np.float64]


def krum(updates: Sequence[Update], f: int) -> list[Update]:
    """The updates without the `f` farthest from the others; of equal ones, the first of `updates` stay.

    Args:
        updates: Of clients that were all sent the same; those without photos, which changed nothing, are left out.
        f: At least 1.

    Raises:
        NothingToAggregate: There are fewer than 2 f + 3 updates of clients with photos.
    """
    known = [update for update in updates if update.num_examples > 0]
    n = len(known)
    fewest = 2 * f + 3
    if n < fewest:
        raise NothingToAggregate(f"rule `krum` needs {fewest} updates of clients with photos, {n} came")
    distances = _squared_distances(known)
    np.fill_diagonal(distances, np.inf)
    scores = np.sort(distances, axis=1)[:, : n - f - 2].sum(axis=1)
    best = np.sort(np.argsort(scores, kind="stable")[: n - f])
    return [known[i] for i in best]


def _squared_distances(updates: Sequence[Update]) -> Float64s:
    """By pair of updates, float64[n, n]: |x - y|^2 = |x|^2 + |y|^2 - 2 x y."""
    sent, step = updates[0].sent[GLOBAL], max(_ROOM // len(updates), _LEAST)
    products = np.zeros((len(updates), len(updates)))
    with ThreadPoolExecutor(_THREADS, "fedlens-krum") as pool:
        for name in updates[0].values[WEIGHTS]:
            base = sent[name].reshape(-1) if name in sent else np.empty(0, np.int64)
            starts = range(0, base.size if base.dtype.kind == "f" else 0, step)
            # They are added up in this order, whichever is ready first: the same bits each time.
            for found in pool.map(partial(_products, updates, name, base, step), starts):
                products += found
    squares = products.diagonal()
    return np.maximum(squares[:, None] + squares - 2 * products, 0.0)


def _products(updates: Sequence[Update], name: str, base: Array, step: int, start: int) -> Float64s:
    """By pair of updates the inner product of their changes, over `step` elements of a tensor."""
    before = base[start : start + step]
    changes = np.empty((len(updates), before.size), np.float32)
    with np.errstate(over="ignore"):
        for row, update in zip(changes, updates, strict=True):
            np.subtract(span(update.values[WEIGHTS], name, start, start + before.size, row), before, out=row)
    if max(changes.max(), -changes.min()) <= _SQUARABLE:
        return (changes @ changes.T).astype(np.float64)
    wide = np.array([span(update.values[WEIGHTS], name, start, start + before.size) for update in updates], np.float64)
    wide -= before
    return wide @ wide.T
