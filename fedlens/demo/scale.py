"""The size of a demo: the number of clients for a pool of photos, and their partition."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from math import ceil
from statistics import median
from typing import Self

from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool, PoolPhoto
from fedlens_proto import photos
from fedlens_proto.errors import PhotoUnreadable

MOST_CLIENTS = 20
# Up to this number each person is a client; of more people, several share a client.
MOST_PEOPLE = 50
LEAST_TRAIN = 2
LEAST_TEST = 1

# Photos that cameras draw afresh in every round.
MOST_PER_CLASS = 40
MOST_TEST_PER_CLASS = 10
# A round takes a small part of a class's photos, so that rounds differ.
ROUNDS_WORTH = 12
STEPS_PHOTOS = 550
MOST_EPOCHS = 5

# Photos that are divided among the clients.
BETA = 0.5
LEAST_EACH = 10
MEAN_EACH = 20
DIVIDED_EPOCHS = 5

SMALL_SIDE, LARGE_SIDE = 160, 224
# Photos of fewer pixels a side are not enlarged to 224.
LEAST_OF_LARGE = 192
SAMPLE = 50


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The numbers of a demo.

    Attributes:
        epochs: Passes over a client's photos in a round.
        album: A client's photos, for people.
    """

    clients: int
    partition: Partition
    epochs: int
    album: str

    @classmethod
    def of_cameras(cls, pool: PhotoPool, clients: int, seed: int) -> Self:
        """Cameras that take new photos in every round: at most `clients`, and fewer than photos of any class.

        Raises:
            TooFewPhotos: A class has too few photos for the smallest demo.
        """
        _require(pool)
        least_train, least_test = min(map(len, pool.train)), min(map(len, pool.test))
        per_class = max(1, min(MOST_PER_CLASS, least_train // ROUNDS_WORTH))
        test_per_class = min(MOST_TEST_PER_CLASS, least_test)
        return cls(
            clients=max(2, min(clients, least_train)),
            partition=Partition(
                name=PartitionName.CAMERA_NONIID, seed=seed, per_class=per_class, test_per_class=test_per_class
            ),
            epochs=max(2, min(MOST_EPOCHS, STEPS_PHOTOS // (per_class * len(pool.class_names)))),
            album=f"in every round 1 to {2 * per_class} photos of each class",
        )

    @classmethod
    def of_owners(cls, pool: PhotoPool, clients: int | None, seed: int) -> Self:
        """Photos divided among clients: by their owners, or with class mixes that differ from client to client.

        Args:
            pool: Photos, with or without owners.
            clients: Maximum; None: 20, or every owner up to 50.
            seed: Seed of the partition.

        Raises:
            TooFewPhotos: A class has too few photos for the smallest demo.
        """
        _require(pool)
        if pool.owners:
            found = max(1, min(clients or MOST_PEOPLE, len(pool.owners)))
            owned = len(pool.owners) == found
            return cls(
                clients=found,
                partition=Partition(name=PartitionName.CLIENTS, seed=seed, clients=found),
                epochs=DIVIDED_EPOCHS,
                album="each with its own photos"
                if owned
                else f"with the photos of {len(pool.owners)} people or devices",
            )
        total = sum(map(len, pool.train))
        found = max(2, min(clients or MOST_CLIENTS, total // MEAN_EACH))
        return cls(
            clients=found,
            partition=Partition(
                name=PartitionName.DIRICHLET,
                seed=seed,
                clients=found,
                beta=BETA,
                min_photos=max(1, min(LEAST_EACH, total // found // 4)),
            ),
            epochs=DIVIDED_EPOCHS,
            album="each with photos of its own, mostly of a few classes",
        )


def side_for(pool: PhotoPool) -> int:
    """The side of the square to which photos are scaled, in pixels: 224 for large photos, otherwise 160.

    `docs/demo.md` compares them. The median side of a sample of readable photos decides.
    """
    listed = [photo.path for side in (pool.train, pool.test) for members in side for photo in members]
    found = []
    for path in listed[:: max(1, len(listed) // SAMPLE)]:
        try:
            found.append(photos.shorter_side(path))
        except (PhotoUnreadable, OSError):
            continue
    return LARGE_SIDE if found and median(found) >= LEAST_OF_LARGE else SMALL_SIDE


def at_most(pool: PhotoPool, most: int) -> PhotoPool:
    """The pool, or about `most` of its photos: the same fraction of each class, or of each owner, chosen by hash.

    Each class keeps as many as the smallest demo takes.
    """
    if count(pool) <= most:
        return pool
    part = most / count(pool)

    def chosen(side: tuple[tuple[PoolPhoto, ...], ...], least: int) -> set[PoolPhoto]:
        groups: dict[object, list[PoolPhoto]] = {}
        for label, members in enumerate(side):
            for photo in members:
                groups.setdefault(photo.owner or label, []).append(photo)
        found = {
            photo for members in groups.values() for photo in sorted(members, key=_rank)[: ceil(part * len(members))]
        }
        for members in side:
            found.update(sorted(members, key=lambda photo: (photo not in found, _rank(photo)))[:least])
        return found

    kept = chosen(pool.train, LEAST_TRAIN) | chosen(pool.test, LEAST_TEST)
    return only(pool, kept.__contains__)


def count(pool: PhotoPool) -> int:
    """The number of train and test photos of a pool."""
    return sum(len(members) for side in (pool.train, pool.test) for members in side)


def only(pool: PhotoPool, wanted: Callable[[PoolPhoto], bool]) -> PhotoPool:
    """The pool with its `wanted` photos alone."""

    def filtered(side: tuple[tuple[PoolPhoto, ...], ...]) -> tuple[tuple[PoolPhoto, ...], ...]:
        return tuple(tuple(photo for photo in members if wanted(photo)) for members in side)

    return replace(pool, train=filtered(pool.train), test=filtered(pool.test))


def _rank(photo: PoolPhoto) -> bytes:
    return sha256(b"fedlens/demo/chosen/v1" + photo.digest + photo.copy.to_bytes(4, "little")).digest()


def _require(pool: PhotoPool) -> None:
    pool.require(
        train=LEAST_TRAIN,
        test=LEAST_TEST,
        advice=f"the smallest demo takes {LEAST_TRAIN} train photos and {LEAST_TEST} test photo of each class",
    )
