"""Clients grouped by what they hold: K-means, its number of groups by the elbow, and K-means with groups of equal size.

FedConcat's paper, sections 3.3 and appendix D, says K-means and a size limit; how the best assignment within the limit
is found, is ours: it is a transport problem, solved exactly. K-means itself is scikit-learn's, best of ten starts.

Groups are numbered in the order in which their first row stands in the input, so that a relabelling of the same groups
gives the same answer. Everything follows from the arguments alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

STARTS = 10
MAX_ITERATIONS = 300

Rows = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Clusters:
    """A grouping of rows.

    Attributes:
        labels: Group of each row, int64 [N], 0 to K - 1; each group has a row.
        centres: Mean of each group's rows, float64 [K, C].
        inertia: Sum of squared distances of the rows to their group's mean.
    """

    labels: Labels
    centres: Rows
    inertia: float


def shares(counts: NDArray[Any]) -> Rows:
    """The share of each class at each client, `n_k^c / n_k`.

    Args:
        counts: Photos, int [N, C], of each client at least one.

    Returns:
        float64 [N, C]; each row adds up to 1.
    """
    numbers = np.asarray(counts, np.float64)
    rows: Rows = numbers / numbers.sum(1, keepdims=True)
    return rows


def distinct(rows: Rows) -> int:
    """How many different rows there are: no more groups than that can be told apart."""
    return len(np.unique(np.asarray(rows), axis=0))


def size_limit(rows: int, clusters: int) -> int:
    """Most rows of a balanced group, `max(ceil(N/K), int(1.2 N/K))`.

    Source: FedConcat, appendix D.
    """
    return max(ceil(rows / clusters), 12 * rows // (10 * clusters))


def k_means(rows: Rows, clusters: int, generator: np.random.Generator, *, balanced: bool = False) -> Clusters:
    """Group rows around so many means, or around fewer where there are fewer different rows.

    Args:
        rows: float64 [N, C], N >= 1.
        clusters: K >= 1.
        generator: Of the starts.
        balanced: Whether a group may have no more than `size_limit(N, K)` rows.
    """
    rows = np.ascontiguousarray(rows, np.float64)
    clusters = min(clusters, distinct(rows))
    seed = int(generator.integers(1 << 31))
    cluster: Any = import_module("sklearn.cluster")  # late: it takes a second, and ships no types
    # With threads, the order in which partial sums are added is up to chance.
    with import_module("threadpoolctl").threadpool_limits(1):
        if balanced:
            limit = size_limit(len(rows), clusters)
            starts = np.random.RandomState(seed)
            found = [
                _limited(rows, cluster.kmeans_plusplus(rows, clusters, random_state=starts)[0], limit)
                for _ in range(STARTS)
            ]
            return _numbered(rows, min(found, key=lambda labels: _summary(rows, labels).inertia))
        fitted = cluster.KMeans(clusters, n_init=STARTS, max_iter=MAX_ITERATIONS, random_state=seed).fit(rows)
        return _numbered(rows, fitted.labels_)


def inertias(rows: Rows, most: int, generator: np.random.Generator) -> list[float]:
    """The inertia with 1, 2, ..., `most` groups; 0 from as many groups on as there are different rows."""
    return [k_means(rows, clusters, generator).inertia for clusters in range(1, most + 1)]


def elbow(curve: Sequence[float]) -> int:
    """The number of groups, from 1, at which a falling curve bends most.

    That is the point farthest below the straight line from its first to its last point; the first of several.

    Args:
        curve: Inertia with 1, 2, ... groups, not empty.
    """
    heights = np.asarray(curve, np.float64)
    line = np.linspace(heights[0], heights[-1], len(heights))
    below = line - heights
    # Where the curve is straight, rounding decides nothing.
    below[below <= 1e-12 * abs(float(heights[0]))] = 0.0
    return int(np.argmax(below)) + 1


def k_by_elbow(rows: Rows, most: int, generator: np.random.Generator) -> int:
    """How many groups the rows have by the elbow of their inertia curve, 1 to `most`.

    The curve goes one further than `most`, since no curve bends at its end.
    """
    return elbow(inertias(rows, min(most, distinct(rows)) + 1, generator))


def _limited(rows: Rows, centres: Rows, limit: int) -> Labels:
    """Lloyd's iteration from these centres, its assignments within the limit."""
    labels = _assign(_distances(rows, centres), limit)
    for _ in range(MAX_ITERATIONS):
        centres = np.stack(
            [rows[labels == k].mean(0) if (labels == k).any() else centre for k, centre in enumerate(centres)]
        )
        distances = _distances(rows, centres)
        following = _assign(distances, limit)
        index = np.arange(len(rows))
        if distances[index, following].sum() >= distances[index, labels].sum():
            break
        labels = following
    return labels


def _assign(distances: Rows, limit: int) -> Labels:
    """The assignment of rows to centres with the least sum of distances, at most `limit` rows to each centre.

    Successive shortest paths: each row starts at its nearest centre; then row by row, the excess moves from the fullest
    centre along the cheapest chain of moves to one with room. With every chain the assignment stays the cheapest one
    of its sizes.
    """
    labels: Labels = np.argmin(distances, 1).astype(np.int64)
    clusters = distances.shape[1]
    sizes = np.bincount(labels, minlength=clusters)
    cost = np.full((clusters, clusters), np.inf)  # of the cheapest move of one row from centre to centre
    mover = np.zeros((clusters, clusters), np.int64)
    stale = set(range(clusters))
    while sizes.max() > limit:
        for k in sorted(stale):
            members = np.flatnonzero(labels == k)
            if len(members) == 0:
                cost[k] = np.inf
                continue
            change = distances[members] - distances[members, k, None]
            best = change.argmin(0)
            cost[k], mover[k] = change[best, np.arange(clusters)], members[best]
        chain = _cheapest_chain(cost, int(sizes.argmax()), np.flatnonzero(sizes < limit))
        moved = [(int(mover[a, b]), b) for a, b in pairwise(chain)]
        for row, to in moved:
            labels[row] = to
        sizes[chain[0]] -= 1
        sizes[chain[-1]] += 1
        stale = set(chain)
    return labels


def _cheapest_chain(cost: Rows, start: int, ends: Labels) -> list[int]:
    """The nodes of the shortest path from `start` to any of `ends`, by Bellman and Ford; none comes twice.

    There is no negative cycle but by rounding, which grows with the distances. So each round's steps are kept apart:
    they lead back to `start` whatever was rounded, and a cycle on the way is cut out.
    """
    nodes = len(cost)
    length = np.full(nodes, np.inf)
    length[start] = 0.0
    steps: list[Labels] = []  # by round and node the one before it, -1: it was reached as cheaply before
    for _ in range(nodes - 1):
        reached = length[:, None] + cost
        nearest = reached.argmin(0)
        best = reached[nearest, np.arange(nodes)]
        shorter = best < length - 1e-15
        if not shorter.any():
            break
        length = np.where(shorter, best, length)
        steps.append(np.where(shorter, nearest, -1))
    chain = [int(ends[length[ends].argmin()])]
    for before in reversed(steps):
        node = int(before[chain[-1]])
        if node in chain:
            del chain[chain.index(node) + 1 :]
        elif node >= 0:
            chain.append(node)
    return chain[::-1]


def _distances(rows: Rows, centres: Rows) -> Rows:
    return np.stack([np.square(rows - centre).sum(1) for centre in centres], 1)


def _numbered(rows: Rows, labels: Labels) -> Clusters:
    """The same groups, numbered by their first rows."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return _summary(rows, rank[inverse])


def _summary(rows: Rows, labels: Labels) -> Clusters:
    used = np.unique(labels)
    centres = np.stack([rows[labels == k].mean(0) for k in used])
    inertia = sum(float(np.square(rows[labels == k] - centre).sum()) for k, centre in zip(used, centres, strict=True))
    return Clusters(labels, centres, inertia)
