"""Splits of labelled samples over clients, as the papers and their authors' code make them.

Papers: FedConcat and NIID-Bench (Li et al., ICDE 2022, https://arxiv.org/abs/2102.02079) for `dirichlet`, `classes` and
`equally`; FedClassAvg for `two_classes`; pFedSim for `halves`.

    paper      here       meaning
    N          n          samples
    n          clients    clients
    C          classes    classes; labels are 0..C-1
    beta       beta       concentration of the Dirichlet distribution, > 0
    k          per_client classes of each client in #C=k

The authors draw from the global legacy generators of numpy and Python. Here the same kinds of generators are arguments:
with `RandomState(s)` and `Random(s)` the functions return the same indices as that code after `np.random.seed(s)` and
`random.seed(s)`. Numpy never changes the numbers of `RandomState`.

Deviations: where the authors' code fails or never ends, `Unservable` says what to change. A class without samples
changes nothing but the draws.
"""

from random import Random

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.errors import EdgeClientError

Labels = NDArray[np.int64]
Indices = NDArray[np.int64]
Split = list[Indices]
"""For each client the indices of its samples."""

TRIES = 1000


class Unservable(EdgeClientError):
    """The samples cannot be divided like this; the text says what to change."""


def dirichlet(labels: Labels, clients: int, beta: float, min_samples: int, random: np.random.RandomState) -> Split:
    """Clients whose class mixes come from a Dirichlet distribution; each sample belongs to one client.

    For each class, cut its shuffled samples in proportions p ~ Dir(beta), with p = 0 for clients that already hold N/n
    samples. Repeat everything until every client has enough samples.

    Args:
        labels: int64 [N], 0..C-1.
        clients: n, at least 1.
        beta: With a smaller beta, clients have fewer classes.
        min_samples: Minimum for each client.
        random: Generator; the number of draws varies.

    Returns:
        For each client the indices of its samples, int64, in random order.

    Raises:
        Unservable: There are too few samples, or none of `TRIES` tries gave every client enough.
    """
    n = len(labels)
    if clients * min_samples > n:
        raise Unservable(
            f"{n} photos are too few for {clients} clients with at least {min_samples} each: "
            f"add photos, take at most {n // max(1, min_samples)} clients, or lower the least number"
        )
    members = _members(labels)
    most = 0
    for _ in range(TRIES):
        split = _cut_once(members, n, clients, beta, random)
        smallest = min(map(len, split))
        if smallest >= min_samples:
            for indices in split:
                random.shuffle(indices)
            return split
        most = max(most, smallest)
    raise Unservable(
        f"{TRIES} draws of beta {beta:g} for {clients} clients gave some client only {most} photos, but each must "
        f"have {min_samples}: raise beta, lower the least number, take fewer clients or another seed"
    )


def classes(labels: Labels, clients: int, per_client: int, random: np.random.RandomState, holders: Random) -> Split:
    """#C=k: clients with samples of k classes; each sample belongs to one client.

    Client i holds class i mod C and k - 1 others; each class, shuffled, is divided evenly among its holders.

    Args:
        labels: int64 [N], 0..C-1.
        clients: n, at least 1.
        per_client: k, 1 to C.
        random: Shuffles the samples.
        holders: Draws the other classes of each client.

    Returns:
        For each client the indices of its samples, int64, class by class.

    Raises:
        Unservable: There are fewer classes than k, or none of `TRIES` draws gave every class a holder.
    """
    members = _members(labels)
    if not 1 <= per_client <= len(members):
        raise Unservable(
            f"{per_client} classes per client, but there are {len(members)}; allowed is 1 to {len(members)}"
        )
    held = _holders(members, clients, per_client, holders)
    pieces: list[list[Indices]] = [[] for _ in range(clients)]
    for label, of_class in enumerate(members):
        having = [client for client in range(clients) if label in held[client]]
        if not having:
            continue
        shuffled = of_class.copy()
        random.shuffle(shuffled)
        for client, piece in zip(having, np.array_split(shuffled, len(having)), strict=True):
            pieces[client].append(piece)
    return [np.concatenate(piece) for piece in pieces]


def two_classes(labels: Labels, clients: int, random: np.random.RandomState) -> Split:
    """Clients of one size with samples of two classes, floor(N / 2n) draws with replacement of each.

    A sample may belong to several clients, several times to one, or to none.

    Args:
        labels: int64 [N], 0..C-1.
        clients: n, at least 1.
        random: Draws and shuffles.

    Returns:
        For each client the indices of its draws, int64, in random order.

    Raises:
        Unservable: There are fewer samples than two for each client, or fewer than two classes.
    """
    members = _members(labels)
    there = [label for label, of_class in enumerate(members) if len(of_class)]
    draws = len(labels) // (2 * clients)
    if draws == 0 or len(there) < 2:
        raise Unservable(
            f"{len(labels)} photos of {len(there)} classes cannot give {clients} clients two classes each: "
            f"there must be two classes, and at least {2 * clients} photos"
        )
    split = []
    for _ in range(clients):
        chosen = random.choice(there, 2, replace=False)
        indices = np.concatenate([random.choice(members[label], draws) for label in chosen])
        random.shuffle(indices)
        split.append(indices)
    return split


def equally(n: int, clients: int, random: np.random.RandomState) -> Split:
    """Samples 0..N-1 in random order, divided evenly; the first clients have one more if N/n is not whole.

    Raises:
        Unservable: There are fewer samples than clients.
    """
    if n < clients:
        raise Unservable(f"{n} photos are too few for {clients} clients: add photos or take fewer clients")
    return list(np.array_split(random.permutation(n), clients))


def halves(split: Split) -> list[tuple[Indices, Indices]]:
    """Each client's samples, in their order, cut in halves for training and tests; an odd sample is for tests."""
    return [(indices[: len(indices) // 2], indices[len(indices) // 2 :]) for indices in split]


def _members(labels: Labels) -> list[Indices]:
    return [np.flatnonzero(labels == label) for label in range(int(labels.max(initial=-1)) + 1)]


def _cut_once(members: list[Indices], n: int, clients: int, beta: float, random: np.random.RandomState) -> Split:
    pieces: list[list[Indices]] = [[] for _ in range(clients)]
    held = np.zeros(clients, np.int64)
    for of_class in members:
        shuffled = of_class.copy()
        random.shuffle(shuffled)
        has_room = held < n / clients
        p = random.dirichlet(np.repeat(beta, clients)) * has_room
        if not len(shuffled):
            continue
        # With a tiny beta, all clients with room may have p = 0, but a client must get the class.
        p = p / p.sum() if p.sum() > 0 else has_room / has_room.sum()
        cuts = (np.cumsum(p) * len(shuffled)).astype(int)[:-1]
        for client, piece in enumerate(np.split(shuffled, cuts)):
            pieces[client].append(piece)
            held[client] += len(piece)
    return [np.concatenate(piece) for piece in pieces]


def _holders(members: list[Indices], clients: int, per_client: int, random: Random) -> list[set[int]]:
    count = len(members)
    if per_client == count:
        return [set(range(count))] * clients
    needed = {label for label, of_class in enumerate(members) if len(of_class)}
    for _ in range(TRIES):
        held = [_with_others(client % count, count, per_client, random) for client in range(clients)]
        if needed <= set().union(*held):
            return held
    raise Unservable(
        f"{clients} clients with {per_client} of {count} classes each do not cover all classes: "
        f"take at least {-(-count // per_client)} clients, better {count}, or more classes per client"
    )


def _with_others(first: int, count: int, per_client: int, random: Random) -> set[int]:
    held = {first}
    while len(held) < per_client:
        held.add(random.randint(0, count - 1))
    return held
