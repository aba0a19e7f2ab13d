"""A partition with its settings, and each client's album."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedlens_edge_client.emulation.partitions.camera import CameraAlbum
from fedlens_edge_client.emulation.partitions.division import (
    Division,
    FixedAlbum,
    dealt_owners,
    divide,
    unseen_owners,
    unseen_photos,
)
from fedlens_edge_client.emulation.partitions.filling import FillingAlbum
from fedlens_edge_client.emulation.partitions.names import SETTINGS, PartitionName
from fedlens_edge_client.emulation.partitions.noise import NoisyAlbum
from fedlens_edge_client.emulation.partitions.pool import PhotoPool
from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.storage.album import Album

# FedConcat's and FedClassAvg's minimum; and pFedSim's, half of which is for tests.
_MIN_PHOTOS = {PartitionName.DIRICHLET: 10, PartitionName.POOLED_HALVES: 40}
# Allowed values of settings; None is always allowed.
_ALLOWED: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    **dict.fromkeys(
        ("clients", "per_class", "test_per_class", "limit", "classes_per_client", "min_photos"),
        ("a whole number, at least 1", lambda value: isinstance(value, int) and value >= 1),
    ),
    **dict.fromkeys(
        ("seed", "test_photos"), ("a whole number, 0 or more", lambda value: isinstance(value, int) and value >= 0)
    ),
    "sigma": ("0 or more", lambda value: 0 <= value < math.inf),
    **dict.fromkeys(("mislabelled", "drift"), ("0 to 1", lambda value: 0 <= value <= 1)),
    "beta": ("more than 0", lambda value: 0 < value < math.inf),
    "unseen": ("0 or more and less than 1", lambda value: 0 <= value < 1),
}


class BadPartition(EdgeClientError):
    """A setting is wrong; the text names it, what was found and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A rule that gives each client photos of a pool in each round.

    Attributes:
        seed: Seed of everything that is drawn.
        clients: Number of trainers; needed by every partition that divides the pool. None with `clients`: one for each
            owner that is not unseen.
        per_class: n of a camera or album, at least 1.
        test_per_class: Test photos of each class and client; None: a fifth of `per_class`, at least 1.
        limit: Maximum number of train photos in an `album`; None: 4 n times the number of classes.
        mislabelled: Fraction of an `album`'s arrivals with a wrong label at first.
        drift: Strength of the change of the class mix of an `album`'s arrivals, 0 to 1.
        beta: Concentration of the Dirichlet distribution, > 0.
        min_photos: Minimum for each client; None: 10, with `pooled-halves` 40, half of them for training.
        classes_per_client: k of #C=k.
        sigma: Noise of client i of n has the standard deviation sigma i/n, in units of the full range of a pixel.
        test_photos: Test photos of each client, with the class mix of its train photos; None: the test photos of each
            class are divided among the clients in proportion to their train photos of that class.
        unseen: Fraction of the owners that have no client, at least 0 and less than 1; the evaluator has their photos.
    """

    name: PartitionName
    seed: int
    clients: int | None = None
    per_class: int = 10
    test_per_class: int | None = None
    limit: int | None = None
    mislabelled: float = 0.1
    drift: float = 0.0
    beta: float = 0.5
    min_photos: int | None = None
    classes_per_client: int = 2
    sigma: float = 0.1
    test_photos: int | None = None
    unseen: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            BadPartition: One is out of its range.
        """
        for key, (allowed, is_allowed) in _ALLOWED.items():
            value = getattr(self, key)
            if value is not None and not is_allowed(value):
                raise BadPartition(f"{key} of partition {self.name.value} is {value}; allowed is {allowed}")

    @classmethod
    def of(cls, name: PartitionName, settings: Mapping[str, Any], *, seed: int, clients: int | None) -> Self:
        """A partition with settings by the names of the attributes.

        Raises:
            BadPartition: A setting belongs to another partition, or is out of its range.
        """
        allowed = SETTINGS[name]
        if wrong := [key for key in settings if key not in allowed]:
            raise BadPartition(f"{wrong[0]!r} is no setting of partition {name.value}; it has {', '.join(allowed)}")
        return cls(name=name, seed=seed, clients=clients, **settings)

    @property
    def summary(self) -> str:
        """Name and settings, for people."""
        shown = {key: self._effective(key) for key in SETTINGS[self.name]}
        parts = [f"{key.replace('_', ' ')} {value:g}" for key, value in shown.items() if value is not None]
        return ", ".join([self.name.value, *parts])

    def album(self, pool: PhotoPool, index: int, made: Path | None = None) -> Album:
        """The album of client `index`, counted from 0.

        Args:
            pool: The photos.
            index: The client.
            made: Folder for the noisy photos of `feature-skew`, which several fleets may share.

        Raises:
            TooFewPhotos: A class has fewer photos than the partition may draw.
            Unservable: The pool cannot be divided among the clients.
            PoolUnusable: With `clients`: photos have no owners, or a client would have no train or no test photo.
        """
        if self.name is PartitionName.ALBUM:
            limit = 4 * self.per_class * len(pool.class_names) if self.limit is None else self.limit
            return FillingAlbum(
                pool, self.seed, index, self.per_class, self._test_per_class, limit, self.mislabelled, self.drift
            )
        if self.name in (PartitionName.CAMERA_IID, PartitionName.CAMERA_NONIID):
            iid = self.name is PartitionName.CAMERA_IID
            return CameraAlbum(pool, self.seed, index, self.per_class, self._test_per_class, iid)
        photos = divide(self._division(pool), pool)[index]
        if self.name is not PartitionName.FEATURE_SKEW:
            return FixedAlbum(photos)
        if made is None:
            raise ValueError("partition feature-skew makes photos; give a folder for them")
        return NoisyAlbum(photos, self.seed, self.sigma * index / self._clients, made)

    def evaluator_album(self, pool: PhotoPool) -> Album:
        """An evaluator's photos: all test photos, or all photos of unseen owners.

        No client trains on any of them; with `pooled-halves` or the folder's own split it may train on copies.

        Raises:
            Unservable, PoolUnusable: As `album`.
        """
        if self.name is PartitionName.CLIENTS and self.unseen:
            return FixedAlbum(unseen_photos(self._division(pool), pool))
        if self.name is not PartitionName.POOLED_HALVES:
            return FixedAlbum(pool.entries(is_test=True))
        return FixedAlbum(
            tuple(photo for photos in divide(self._division(pool), pool) for photo in photos if photo.is_test)
        )

    def owners_of(self, pool: PhotoPool, index: int) -> tuple[str, ...]:
        """The owners of client `index`; none in partitions other than `clients`.

        Raises:
            Unservable, PoolUnusable: As `album`.
        """
        return dealt_owners(self._division(pool), pool)[index] if self.name is PartitionName.CLIENTS else ()

    def unseen_owners(self, pool: PhotoPool) -> tuple[str, ...]:
        """The owners without a client, the same for any number of clients.

        Raises:
            Unservable, PoolUnusable: As `album`.
        """
        return unseen_owners(self.seed, self.unseen, pool) if self.name is PartitionName.CLIENTS else ()

    def clients_of(self, pool: PhotoPool) -> int:
        """The number of trainers: `clients`, or one for each owner that is not unseen.

        Raises:
            Unservable, PoolUnusable: As `album`.
            BadPartition: `clients` is needed.
        """
        if self.name is PartitionName.CLIENTS and self.clients is None:
            return len(pool.owners) - len(self.unseen_owners(pool))
        return self._clients

    def _division(self, pool: PhotoPool) -> Division:
        return Division(
            name=self.name,
            seed=self.seed,
            clients=self.clients_of(pool),
            beta=self.beta,
            min_photos=self._effective("min_photos") or 1,
            classes_per_client=self.classes_per_client,
            test_photos=self.test_photos,
            unseen=self.unseen,
        )

    @property
    def _clients(self) -> int:
        if self.clients is None:
            raise BadPartition(
                f"partition {self.name.value} divides the photos among the clients; set the number of `clients`"
            )
        return self.clients

    @property
    def _test_per_class(self) -> int:
        return max(1, self.per_class // 5) if self.test_per_class is None else self.test_per_class

    def _effective(self, key: str) -> Any:
        return _MIN_PHOTOS.get(self.name) if key == "min_photos" and self.min_photos is None else getattr(self, key)
