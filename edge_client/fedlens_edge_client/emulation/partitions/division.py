"""A pool divided among the clients once and for all: the same photos in every round.

The train photos (with `pooled-halves` the test photos behind them) are divided by a rule of `splits.py`: they are
its samples, in the order of the pool (class by class, by path), and its generators are seeded with the partition's seed
as it is: `--seed s` is the authors' `np.random.seed(s)` with `random.seed(s)`. Test photos of the other rules are drawn
by generators of their own and so change no share.

    n_k^c   train photos of class c at client k
    T_c     test photos of class c in the pool

`clients` divides no classes but owners (`dealing.py`), whose photos have their sides from the pool.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from random import Random

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.emulation.partitions import dealing, splits
from fedlens_edge_client.emulation.partitions.camera import generator
from fedlens_edge_client.emulation.partitions.listing import PoolPhoto, PoolUnusable
from fedlens_edge_client.emulation.partitions.pool import PhotoPool
from fedlens_edge_client.emulation.partitions.splits import Unservable
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo

Drawn = list[tuple[int, PoolPhoto]]
"""Photos with their classes."""


class Rule(StrEnum):
    """Names of the rules, which are those of their partitions."""

    DIRICHLET = "dirichlet"
    CLASSES = "classes"
    TWO_CLASSES = "two-classes"
    POOLED_HALVES = "pooled-halves"
    FEATURE_SKEW = "feature-skew"
    CLIENTS = "clients"


@dataclass(frozen=True, kw_only=True)
class Division:
    """How a pool is divided; see `Partition` for the settings."""

    rule: Rule
    seed: int
    clients: int
    beta: float
    least: int
    per_client: int
    test_photos: int | None
    unseen: float


@dataclass(frozen=True)
class FixedAlbum:
    """The same photos in every round."""

    held: tuple[Photo, ...]

    def photos(self, round_number: int) -> AlbumSnapshot:
        """All photos; the round does not matter."""
        del round_number
        return AlbumSnapshot(photos=self.held, skipped={})


@dataclass(frozen=True)
class EvaluatorAlbum:
    """Every test photo of a pool, in every round."""

    pool: PhotoPool

    def photos(self, round_number: int) -> AlbumSnapshot:
        """All test photos; the round does not matter."""
        del round_number
        return AlbumSnapshot(self.pool.entries(is_test=True))


@lru_cache(maxsize=4)
def divide(division: Division, pool: PhotoPool) -> tuple[tuple[Photo, ...], ...]:
    """For each client its photos, train photos first.

    Kept for the next client's call: a division takes as long for one client as for all.

    Raises:
        Unservable: The pool has too few photos for it.
        PoolUnusable: The rule is that of owners, and there are none; or a client would have no photo on a side.
    """
    if division.rule is Rule.CLIENTS:
        sides = _of_owners(division, pool)
    elif division.rule is Rule.POOLED_HALVES:
        sides = _pooled_halves(division, pool)
    else:
        train = _train_shares(division, pool)
        if division.test_photos is None:
            test = _test_shares(division.seed, train, pool)
        else:
            test = [
                _own_test_photos(division.seed, index, share, division.test_photos, pool)
                for index, share in enumerate(train)
            ]
        sides = list(zip(train, test, strict=True))
    return tuple(_entries(pool, train, test) for train, test in sides)


def unseen_owners(seed: int, share: float, pool: PhotoPool) -> tuple[str, ...]:
    """The owners whose photos no client has, ascending.

    Raises:
        PoolUnusable: The photos have no owners.
        Unservable: Nobody would be left.
    """
    if not pool.owners:
        raise PoolUnusable(
            f"{pool.root} does not say whose photos these are, which partition clients needs: put them into folders "
            "CLIENT/CLASS, or write a table clients.csv with columns file and client"
        )
    return dealing.unseen(pool.owners, seed, share)


@lru_cache(maxsize=4)
def dealt_owners(division: Division, pool: PhotoPool) -> tuple[tuple[str, ...], ...]:
    """For each client the owners whose photos it has.

    Raises:
        PoolUnusable, Unservable: As `unseen_owners`; or there are more clients than owners.
    """
    kept = set(unseen_owners(division.seed, division.unseen, pool))
    return dealing.deal(tuple(owner for owner in pool.owners if owner not in kept), division.seed, division.clients)


def unseen_photos(division: Division, pool: PhotoPool) -> tuple[Photo, ...]:
    """All photos of the owners that no client has, as test photos, but for those that a client trains on too."""
    seen = {owner for owners in dealt_owners(division, pool) for owner in owners}
    train, test = _flat(pool.train), _flat(pool.test)
    trained = {photo.digest for _, photo in train if photo.owner in seen}
    kept = [pair for pair in train + test if pair[1].owner not in seen and pair[1].digest not in trained]
    return _entries(pool, [], kept)


def _of_owners(division: Division, pool: PhotoPool) -> list[tuple[Drawn, Drawn]]:
    dealt = dealt_owners(division, pool)
    sides: list[tuple[Drawn, Drawn]] = [([], []) for _ in dealt]
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
                f"{len(test)} to test with; it needs both, and equal files are on one side: add photos, leave its own "
                "out, or take fewer clients, so that each has several people's or devices'"
            )
    return sides


def _train_shares(division: Division, pool: PhotoPool) -> list[Drawn]:
    photos = _flat(pool.train)
    labels = _labels(photos)
    random = np.random.RandomState(division.seed)
    match division.rule:
        case Rule.DIRICHLET:
            shares = splits.dirichlet(labels, division.clients, division.beta, division.least, random)
        case Rule.CLASSES:
            holders = Random(division.seed)
            shares = splits.classes(labels, division.clients, division.per_client, random, holders)
        case Rule.TWO_CLASSES:
            shares = splits.two_classes(labels, division.clients, random)
        case _:
            shares = splits.equal_shares(len(photos), division.clients, random)
    for index, share in enumerate(shares):
        if not len(share):
            raise Unservable(
                f"{len(photos)} photos in {pool.root} leave client {index} without any: "
                f"add photos or take fewer than {division.clients} clients"
            )
    return [[photos[i] for i in share] for share in shares]


def _pooled_halves(division: Division, pool: PhotoPool) -> list[tuple[Drawn, Drawn]]:
    photos = _flat(pool.train) + _flat(pool.test)
    random = np.random.RandomState(division.seed)
    shares = splits.dirichlet(_labels(photos), division.clients, division.beta, division.least, random)
    sides = []
    for train, test in splits.halves(shares, random):
        trained = {photos[i][1].digest for i in train}
        # Equal files in both halves would be trained on and tested with.
        apart = [photos[i] for i in test if photos[i][1].digest not in trained]
        sides.append(([photos[i] for i in train], apart))
    return sides


def _test_shares(seed: int, train: list[Drawn], pool: PhotoPool) -> list[Drawn]:
    """The test photos of class c, shuffled, cut in the proportions n_k^c / sum_j n_j^c."""
    counts = np.array([_class_counts(share, len(pool.class_names)) for share in train])
    random = generator("fedlens/regime/test-shares/v1", seed, 0, 0)
    shares: list[Drawn] = [[] for _ in train]
    for label, members in enumerate(pool.test):
        order = random.permutation(len(members))
        held = np.cumsum(counts[:, label])
        if not held[-1]:
            continue
        # In whole numbers: the cuts are the same on every machine.
        cuts = (held * len(members) // held[-1])[:-1]
        for share, piece in zip(shares, np.split(order, cuts), strict=True):
            share.extend((label, members[i]) for i in piece)
    return shares


def _own_test_photos(seed: int, index: int, train: Drawn, count: int, pool: PhotoPool) -> Drawn:
    """`count` of the pool's test photos with the class mix of `train`, rounded by largest remainders."""
    counts = _class_counts(train, len(pool.class_names))
    wanted = count * counts // counts.sum()
    remainders = count * counts % counts.sum()
    # A stable sort: of equal remainders the first class has the larger number.
    wanted[np.argsort(-remainders, kind="stable")[: count - wanted.sum()]] += 1
    random = generator("fedlens/regime/own-test/v1", seed, index, 0)
    drawn: Drawn = []
    for label, (needed, members) in enumerate(zip(wanted, pool.test, strict=True)):
        if needed > len(members):
            raise Unservable(
                f"class {pool.class_names[label]!r} has {len(members)} test photos in {pool.root}; client {index}, "
                f"of whose {len(train)} train photos {counts[label]} are of it, is to have {needed} of {count}: "
                "lower the number of test photos or add some"
            )
        drawn.extend((label, members[i]) for i in random.choice(len(members), needed, replace=False))
    return drawn


def _flat(sides: Iterable[tuple[PoolPhoto, ...]]) -> Drawn:
    return [(label, photo) for label, members in enumerate(sides) for photo in members]


def _labels(photos: Drawn) -> NDArray[np.int64]:
    return np.array([label for label, _ in photos], np.int64)


def _class_counts(share: Drawn, classes: int) -> NDArray[np.int64]:
    return np.bincount(_labels(share), minlength=classes)


def _entries(pool: PhotoPool, train: Drawn, test: Drawn) -> tuple[Photo, ...]:
    """Album entries; a photo that was drawn several times is there as so many copies."""
    copies: Counter[bytes] = Counter()
    entries = []
    for side, is_test in ((train, False), (test, True)):
        for label, photo in side:
            copy = copies[photo.digest]
            copies[photo.digest] += 1
            entries.append(Photo(photo.digest, copy, pool.class_names[label], photo.path, is_test))
    return tuple(entries)
