"""Fixed partitions, which divide a pool among the clients once for all rounds.

A rule of `splits.py` divides the train photos, with `pooled-halves` also the test photos behind them, in the order of
the pool: class by class, by path. The partition's seed seeds its generators, so that `--seed s` is the authors'
`np.random.seed(s)` with `random.seed(s)`. All other test photos come from generators of their own and change no train
photos.

    n_k^c   train photos of class c at client k
    T_c     test photos of class c in the pool

The partition `clients` divides owners instead (`dealing.py`); the pool says which of their photos are for tests.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.emulation.partitions import dealing, splits
from fedlens_edge_client.emulation.partitions.camera import generator
from fedlens_edge_client.emulation.partitions.listing import PoolPhoto, PoolUnusable
from fedlens_edge_client.emulation.partitions.names import PartitionName
from fedlens_edge_client.emulation.partitions.pool import PhotoPool
from fedlens_edge_client.emulation.partitions.splits import Unservable
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo

Labelled = list[tuple[int, PoolPhoto]]
"""Photos with their classes."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """The settings of a fixed partition, with defaults filled in; `Partition` describes them."""

    name: PartitionName
    seed: int
    clients: int
    beta: float
    min_photos: int
    classes_per_client: int
    test_photos: int | None
    unseen: float


@dataclass(frozen=True)
class FixedAlbum:
    """The same photos in every round."""

    held: tuple[Photo, ...]

    def photos(self, round_number: int) -> AlbumSnapshot:
        """All photos, in every round."""
        return AlbumSnapshot(photos=self.held, skipped={})


@lru_cache(maxsize=4)
def divide(division: Division, pool: PhotoPool) -> tuple[tuple[Photo, ...], ...]:
    """Each client's photos, train photos first; cached, because all clients take no longer than one.

    Raises:
        Unservable: The pool has too few photos.
        PoolUnusable: With `clients`: photos have no owners, or a client would have no train or no test photo.
    """
    if division.name is PartitionName.CLIENTS:
        sides = _of_owners(division, pool)
    elif division.name is PartitionName.POOLED_HALVES:
        sides = _pooled_halves(division, pool)
    else:
        train = _train_photos(division, pool)
        if division.test_photos is None:
            test = _test_photos(division.seed, train, pool)
        else:
            test = [
                _own_test_photos(division.seed, index, mine, division.test_photos, pool)
                for index, mine in enumerate(train)
            ]
        sides = list(zip(train, test, strict=True))
    return tuple(_entries(pool, train, test) for train, test in sides)


def unseen_owners(seed: int, fraction: float, pool: PhotoPool) -> tuple[str, ...]:
    """The owners without a client, ascending.

    Raises:
        PoolUnusable: The photos have no owners.
        Unservable: No owner would be left.
    """
    if not pool.owners:
        raise PoolUnusable(
            f"{pool.root} does not say whose photos these are, which partition clients needs: put them into folders "
            "CLIENT/CLASS, or write a table clients.csv with columns file and client"
        )
    return dealing.unseen(pool.owners, seed, fraction)


@lru_cache(maxsize=4)
def dealt_owners(division: Division, pool: PhotoPool) -> tuple[tuple[str, ...], ...]:
    """Each client's owners.

    Raises:
        PoolUnusable, Unservable: As `unseen_owners`; or there are more clients than owners.
    """
    kept = set(unseen_owners(division.seed, division.unseen, pool))
    return dealing.deal(tuple(owner for owner in pool.owners if owner not in kept), division.seed, division.clients)


def unseen_photos(division: Division, pool: PhotoPool) -> tuple[Photo, ...]:
    """All photos of unseen owners, as test photos, except copies of photos that a client trains on."""
    seen = {owner for owners in dealt_owners(division, pool) for owner in owners}
    train, test = _flat(pool.train), _flat(pool.test)
    trained = {photo.digest for _, photo in train if photo.owner in seen}
    kept = [pair for pair in train + test if pair[1].owner not in seen and pair[1].digest not in trained]
    return _entries(pool, [], kept)


def _of_owners(division: Division, pool: PhotoPool) -> list[tuple[Labelled, Labelled]]:
    dealt = dealt_owners(division, pool)
    sides: list[tuple[Labelled, Labelled]] = [([], []) for _ in dealt]
    client_of = {owner: index for index, owners in enumerate(dealt) for owner in owners}
    for side, photos in enumerate((pool.train, pool.test)):
        for pair in _flat(photos):
            if (index := client_of.get(pair[1].owner)) is not None:
                sides[index][side].append(pair)
    for index, (owners, (train, test)) in enumerate(zip(dealt, sides, strict=True)):
        if not train or not test:
            name = repr(owners[0]) if len(owners) == 1 else f"{index} (of {', '.join(owners)})"
            count = len(train) + len(test)
            raise PoolUnusable(
                f"client {name} has {count} photo{'s' * (count != 1)} in {pool.root}, {len(train)} to train on and "
                f"{len(test)} to test with; it needs both, and equal files are on one side: add photos, leave it out, "
                "or take fewer clients, each with photos of several people or devices"
            )
    return sides


def _train_photos(division: Division, pool: PhotoPool) -> list[Labelled]:
    photos = _flat(pool.train)
    labels = _labels(photos)
    random = np.random.RandomState(division.seed)
    match division.name:
        case PartitionName.DIRICHLET:
            split = splits.dirichlet(labels, division.clients, division.beta, division.min_photos, random)
        case PartitionName.CLASSES:
            holders = Random(division.seed)
            split = splits.classes(labels, division.clients, division.classes_per_client, random, holders)
        case PartitionName.TWO_CLASSES:
            split = splits.two_classes(labels, division.clients, random)
        case _:
            split = splits.equally(len(photos), division.clients, random)
    for index, mine in enumerate(split):
        if not len(mine):
            raise Unservable(
                f"{len(photos)} photos in {pool.root} leave client {index} without any: "
                f"add photos or take fewer than {division.clients} clients"
            )
    return [[photos[i] for i in mine] for mine in split]


def _pooled_halves(division: Division, pool: PhotoPool) -> list[tuple[Labelled, Labelled]]:
    photos = _flat(pool.train) + _flat(pool.test)
    random = np.random.RandomState(division.seed)
    split = splits.dirichlet(_labels(photos), division.clients, division.beta, division.min_photos, random)
    sides = []
    for train, test in splits.halves(split):
        trained = {photos[i][1].digest for i in train}
        # A file that is in both halves is only trained on.
        apart = [photos[i] for i in test if photos[i][1].digest not in trained]
        sides.append(([photos[i] for i in train], apart))
    return sides


def _test_photos(seed: int, train: list[Labelled], pool: PhotoPool) -> list[Labelled]:
    """Each client's test photos: those of class c, shuffled, cut in the proportions n_k^c / sum_j n_j^c."""
    counts = np.array([_class_counts(mine, len(pool.class_names)) for mine in train])
    random = generator("test-shares/v1", seed, 0, 0)
    test: list[Labelled] = [[] for _ in train]
    for label, members in enumerate(pool.test):
        order = random.permutation(len(members))
        held = np.cumsum(counts[:, label])
        if not held[-1]:
            continue
        # Integers give the same cuts on every machine.
        cuts = (held * len(members) // held[-1])[:-1]
        for mine, piece in zip(test, np.split(order, cuts), strict=True):
            mine.extend((label, members[i]) for i in piece)
    return test


def _own_test_photos(seed: int, index: int, train: Labelled, count: int, pool: PhotoPool) -> Labelled:
    """`count` of the pool's test photos with the class mix of `train`, rounded by the largest remainders."""
    counts = _class_counts(train, len(pool.class_names))
    wanted = count * counts // counts.sum()
    remainders = count * counts % counts.sum()
    # With a stable sort, the first of equal remainders is rounded up.
    wanted[np.argsort(-remainders, kind="stable")[: count - wanted.sum()]] += 1
    random = generator("own-test/v1", seed, index, 0)
    drawn: Labelled = []
    for label, (needed, members) in enumerate(zip(wanted, pool.test, strict=True)):
        if needed > len(members):
            raise Unservable(
                f"class {pool.class_names[label]!r} has {len(members)} test photos in {pool.root}, but client {index} "
                f"needs {needed} among its {count}, because {counts[label]} of its {len(train)} train photos are "
                "of this class: lower the number of test photos or add some"
            )
        drawn.extend((label, members[i]) for i in random.choice(len(members), needed, replace=False))
    return drawn


def _flat(sides: Iterable[tuple[PoolPhoto, ...]]) -> Labelled:
    return [(label, photo) for label, members in enumerate(sides) for photo in members]


def _labels(photos: Labelled) -> NDArray[np.int64]:
    return np.array([label for label, _ in photos], np.int64)


def _class_counts(photos: Labelled, classes: int) -> NDArray[np.int64]:
    return np.bincount(_labels(photos), minlength=classes)


def _entries(pool: PhotoPool, train: Labelled, test: Labelled) -> tuple[Photo, ...]:
    """Album entries; a photo that was drawn several times has as many copies."""
    copies: Counter[bytes] = Counter()
    entries = []
    for side, is_test in ((train, False), (test, True)):
        for label, photo in side:
            copy = copies[photo.digest]
            copies[photo.digest] += 1
            entries.append(Photo(photo.digest, copy, pool.class_names[label], photo.path, is_test))
    return tuple(entries)
