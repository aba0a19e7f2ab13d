"""Who holds which samples: partitions of a label array over clients, as the papers and their authors' code make them.

Papers: FedConcat and NIID-Bench (Li et al., ICDE 2022, https://arxiv.org/abs/2102.02079) for `dirichlet`, `classes` and
`equal_shares`; FedClassAvg for `two_classes`; pFedSim for `halves`.

    paper      here       meaning
    N          n          samples
    n          clients    clients
    C          classes    classes; labels are 0..C-1
    beta       beta       concentration of the Dirichlet distribution, > 0
    k          per_client classes of each client in #C=k

The authors draw from numpy's and Python's global generators of old. Here the same kinds of generators are arguments:
with `RandomState(s)` and `Random(s)` the functions return what that code does after `np.random.seed(s)` and
`random.seed(s)`, index by index. Numpy keeps the numbers of `RandomState` as they are for ever.

Deviations: where the authors' code repeats without end or fails, `Unservable` says what to change. A class without
samples takes part in nothing but the draws.
"""

from random import Random

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.errors import EdgeClientError

Labels = NDArray[np.int64]
Shares = list[NDArray[np.int64]]

TRIES = 1000


class Unservable(EdgeClientError):
    """These samples cannot be divided so; the text says what to change."""


def dirichlet(labels: Labels, clients: int, beta: float, least: int, random: np.random.RandomState) -> Shares:
    """Shares whose class mixes are drawn from a Dirichlet distribution; every sample is in one of them.

    Class by class, its shuffled samples are cut in proportions p ~ Dir(beta), of which those of clients that hold N/n
    samples already are set to 0; all is repeated until every client holds enough.

    Args:
        labels: int64 [N], 0..C-1.
        clients: n, at least 1.
        beta: The smaller, the fewer classes does a client have.
        least: Samples that each client must hold, at least.
        random: Used up by an unknown number of draws.

    Returns:
        For each client the indices of its samples, int64, in random order.

    Raises:
        Unservable: Not enough samples, or none of `TRIES` tries gave every client enough.
    """
    n = len(labels)
    if clients * least > n:
        raise Unservable(
            f"{n} photos are too few for {clients} clients with at least {least} each: "
            f"add photos, take at most {n // max(1, least)} clients, or lower the least number"
        )
    members = _members(labels)
    most = 0
    for _ in range(TRIES):
        shares = _cut_once(members, n, clients, beta, random)
        smallest = min(map(len, shares))
        if smallest >= least:
            for share in shares:
                random.shuffle(share)
            return shares
        most = max(most, smallest)
    raise Unservable(
        f"{TRIES} draws of beta {beta:g} for {clients} clients left one with {most} photos at best, where each must "
        f"have {least}: raise beta, lower the least number, take fewer clients or another seed"
    )


def classes(labels: Labels, clients: int, per_client: int, random: np.random.RandomState, holders: Random) -> Shares:
    """#C=k: shares with samples of k classes each; every sample is in one of them.

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
        raise Unservable(f"{per_client} classes per client where there are {len(members)}; allowed is 1 to that")
    held = _holders(members, clients, per_client, holders)
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label, of_class in enumerate(members):
        having = [client for client in range(clients) if label in held[client]]
        if not having:
            continue
        shuffled = of_class.copy()
        random.shuffle(shuffled)
        for client, piece in zip(having, np.array_split(shuffled, len(having)), strict=True):
            pieces[client].append(piece)
    return [np.concatenate(piece) for piece in pieces]


def two_classes(labels: Labels, clients: int, random: np.random.RandomState) -> Shares:
    """Shares of one size with samples of two classes each, floor(N / 2n) draws with replacement of either.

    A sample may be in several shares, several times in one, or in none.

    Args:
        labels: int64 [N], 0..C-1.
        clients: n, at least 1.
        random: Draws and shuffles.

    Returns:
        For each client the indices of its draws, int64, in random order.

    Raises:
        Unservable: There is no sample for each of two draws per client, or only one class.
    """
    members = _members(labels)
    there = [label for label, of_class in enumerate(members) if len(of_class)]
    draws = len(labels) // (2 * clients)
    if draws == 0 or len(there) < 2:
        raise Unservable(
            f"{len(labels)} photos of {len(there)} classes cannot give {clients} clients two classes each: "
            f"there must be two classes, and at least {2 * clients} photos"
        )
    shares = []
    for _ in range(clients):
        chosen = random.choice(there, 2, replace=False)
        share = np.concatenate([random.choice(members[label], draws) for label in chosen])
        random.shuffle(share)
        shares.append(share)
    return shares


def equal_shares(n: int, clients: int, random: np.random.RandomState) -> Shares:
    """Samples 0..N-1 in random order, divided evenly: the first shares have one more where that does not come out.

    Raises:
        Unservable: There are fewer samples than clients.
    """
    if n < clients:
        raise Unservable(f"{n} photos are too few for {clients} clients: add photos or take fewer clients")
    return list(np.array_split(random.permutation(n), clients))


def halves(shares: Shares, random: np.random.RandomState) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Each client's share shuffled and cut in half: to train on, and to test with, which has the odd sample."""
    cut = []
    for share in shares:
        shuffled = random.permutation(share)
        cut.append((shuffled[: len(share) // 2], shuffled[len(share) // 2 :]))
    return cut


def _members(labels: Labels) -> Shares:
    return [np.flatnonzero(labels == label) for label in range(int(labels.max(initial=-1)) + 1)]


def _cut_once(members: Shares, n: int, clients: int, beta: float, random: np.random.RandomState) -> Shares:
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    held = np.zeros(clients, np.int64)
    for of_class in members:
        shuffled = of_class.copy()
        random.shuffle(shuffled)
        has_room = held < n / clients
        p = random.dirichlet(np.repeat(beta, clients)) * has_room
        if not len(shuffled):
            continue
        # A tiny beta can leave every client that has room without a proportion; the class must go somewhere.
        p = p / p.sum() if p.sum() > 0 else has_room / has_room.sum()
        cuts = (np.cumsum(p) * len(shuffled)).astype(int)[:-1]
        for client, piece in enumerate(np.split(shuffled, cuts)):
            pieces[client].append(piece)
            held[client] += len(piece)
    return [np.concatenate(piece) for piece in pieces]


def _holders(members: Shares, clients: int, per_client: int, random: Random) -> list[set[int]]:
    count = len(members)
    if per_client == count:
        return [set(range(count))] * clients
    needed = {label for label, of_class in enumerate(members) if len(of_class)}
    for _ in range(TRIES):
        held = [_with_others(client % count, count, per_client, random) for client in range(clients)]
        if needed <= set().union(*held):
            return held
    raise Unservable(
        f"{clients} clients with {per_client} of {count} classes each leave a class to nobody: "
        f"take at least {-(-count // per_client)} clients, better {count}, or more classes per client"
    )


def _with_others(first: int, count: int, per_client: int, random: Random) -> set[int]:
    held = {first}
    while len(held) < per_client:
        held.add(random.randint(0, count - 1))
    return held
