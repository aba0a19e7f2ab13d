"""Clustering of label distributions: K-means, the number of clusters by the elbow, and K-means with a size limit.

FedConcat's paper, section 3.3 and appendix D, asks for K-means and a size limit. The assignment within the limit is
ours: a transport problem, solved exactly. K-means itself is scikit-learn's, the best of ten starts; with the limit,
which makes more local optima, of up to a hundred.

Clusters are numbered by their first row in the input, so that relabelled clusters give the same result. All results
depend on the arguments alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_server.planning.one_thread import use_one_thread

STARTS = 10
BALANCED_STARTS = 100  # fewer for more than 1,000 rows, which take longer
MAX_ITERATIONS = 300

Rows = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Clusters:
    """A clustering of rows.

    Attributes:
        labels: Cluster of each row, int64 [N], 0 to K - 1; no cluster is empty.
        centres: Mean of each cluster's rows, float64 [K, C].
        inertia: Sum of squared distances of the rows to their cluster's mean.
    """

    labels: Labels
    centres: Rows
    inertia: float


def label_distributions(counts: NDArray[Any]) -> Rows:
    """The label distribution of each client, `n_k^c / n_k`.

    Args:
        counts: Photos by client and class, int [N, C], at least one per client.

    Returns:
        float64 [N, C]; each row adds up to 1.
    """
    numbers = np.asarray(counts, np.float64)
    rows: Rows = numbers / numbers.sum(1, keepdims=True)
    return rows


def distinct(rows: Rows) -> int:
    """The number of different rows, which is the most clusters that can be formed."""
    return len(np.unique(np.asarray(rows), axis=0))


def size_limit(rows: int, clusters: int) -> int:
    """The most rows of a balanced cluster, `max(ceil(N/K), int(1.2 N/K))`.

    Source: FedConcat, appendix D.
    """
    return max(ceil(rows / clusters), 12 * rows // (10 * clusters))


def k_means(rows: Rows, clusters: int, generator: np.random.Generator, *, balanced: bool = False) -> Clusters:
    """Cluster rows around K means, or around fewer if there are fewer different rows.

    Args:
        rows: float64 [N, C], N >= 1.
        clusters: K >= 1.
        generator: Source of the starts.
        balanced: Allow at most `size_limit(N, K)` rows in a cluster.
    """
    rows = np.ascontiguousarray(rows, np.float64)
    clusters = min(clusters, distinct(rows))
    seed = int(generator.integers(1 << 31))
    cluster: Any = import_module("sklearn.cluster")  # late: it takes a second, and ships no types
    # With several threads, partial sums are added in random order.
    use_one_thread()
    if balanced:
        limit = size_limit(len(rows), clusters)
        starts = np.random.RandomState(seed)
        found = [
            _limited(rows, cluster.kmeans_plusplus(rows, clusters, random_state=starts)[0], limit)
            for _ in range(max(STARTS, min(BALANCED_STARTS, 100_000 // len(rows))))
        ]
        return _numbered(rows, min(found, key=lambda labels: _summary(rows, labels).inertia))
    fitted = cluster.KMeans(clusters, n_init=STARTS, max_iter=MAX_ITERATIONS, random_state=seed).fit(rows)
    return _numbered(rows, fitted.labels_)


def inertias(rows: Rows, most: int, generator: np.random.Generator) -> list[float]:
    """The inertia with 1, 2, ..., `most` clusters; 0 once there is a cluster for each different row."""
    return [k_means(rows, clusters, generator).inertia for clusters in range(1, most + 1)]


def elbow(curve: Sequence[float]) -> int:
    """The number of clusters, from 1, at which a falling curve bends most.

    That is the point farthest below the straight line from the first to the last point; the first of equals.

    Args:
        curve: Inertia with 1, 2, ... clusters, not empty.
    """
    heights = np.asarray(curve, np.float64)
    line = np.linspace(heights[0], heights[-1], len(heights))
    below = line - heights
    # On a straight curve, rounding must not decide.
    below[below <= 1e-12 * abs(float(heights[0]))] = 0.0
    return int(np.argmax(below)) + 1


def k_by_elbow(rows: Rows, most: int, generator: np.random.Generator) -> int:
    """The number of clusters by the elbow of the inertia curve, 1 to `most`.

    The curve has one more point than `most`, because no curve bends at its end.
    """
    return elbow(inertias(rows, min(most, distinct(rows)) + 1, generator))


def _limited(rows: Rows, centres: Rows, limit: int) -> Labels:
    """The labels from Lloyd's iteration, started at these centres, with at most `limit` rows per cluster."""
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
    """The assignment of rows to centres with the least sum of distances and at most `limit` rows per centre.

    Successive shortest paths: each row starts at its nearest centre; then the excess moves row by row from the fullest
    centre along the cheapest chain of moves to a centre with room. After every chain the assignment is the cheapest one
    with these cluster sizes. scipy's `linear_sum_assignment` with each centre repeated takes 5 s for 2,000 rows and as
    much memory as N^2 numbers.
    """
    labels: Labels = np.argmin(distances, 1).astype(np.int64)
    clusters = distances.shape[1]
    sizes = np.bincount(labels, minlength=clusters)
    cost = np.full((clusters, clusters), np.inf)  # cost of the cheapest move of one row from centre to centre
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
        for a, b in pairwise(chain):
            labels[mover[a, b]] = b
        sizes[chain[0]] -= 1
        sizes[chain[-1]] += 1
        stale = set(chain)
    return labels


def _cheapest_chain(cost: Rows, start: int, ends: Labels) -> list[int]:
    """The nodes of the shortest path from `start` to any of `ends`, by Bellman and Ford; no node is repeated.

    Only rounding, which grows with the distances, can make a cycle negative. The steps of each iteration are therefore
    stored apart: they lead back to `start` whatever was rounded, and a cycle on the way is cut out.
    """
    nodes = len(cost)
    length = np.full(nodes, np.inf)
    length[start] = 0.0
    steps: list[Labels] = []  # by iteration, each node's predecessor; -1: no shorter path found
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
    """The same clusters, numbered by their first rows."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return _summary(rows, rank[inverse])


def _summary(rows: Rows, labels: Labels) -> Clusters:
    used = np.unique(labels)
    centres = np.stack([rows[labels == k].mean(0) for k in used])
    inertia = sum(float(np.square(rows[labels == k] - centre).sum()) for k, centre in zip(used, centres, strict=True))
    return Clusters(labels, centres, inertia)
