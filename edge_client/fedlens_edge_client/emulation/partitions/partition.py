"""A partition by name with its settings, and the album that it gives to each client."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from fedlens_edge_client.emulation.partitions.camera import CameraAlbum
from fedlens_edge_client.emulation.partitions.division import (
    Division,
    EvaluatorAlbum,
    FixedAlbum,
    Rule,
    dealt_owners,
    divide,
    unseen_owners,
    unseen_photos,
)
from fedlens_edge_client.emulation.partitions.filling import FillingAlbum
from fedlens_edge_client.emulation.partitions.noise import NoisyAlbum
from fedlens_edge_client.emulation.partitions.pool import PhotoPool
from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.storage.album import Album


class PartitionName(StrEnum):
    """Names of the partitions, as on the command line."""

    CAMERA_IID = "camera-iid"
    CAMERA_NONIID = "camera-noniid"
    ALBUM = "album"
    DIRICHLET = "dirichlet"
    CLASSES = "classes"
    TWO_CLASSES = "two-classes"
    POOLED_HALVES = "pooled-halves"
    FEATURE_SKEW = "feature-skew"
    CLIENTS = "clients"


_CAMERA = ("per_class", "test_per_class")
SETTINGS: Mapping[PartitionName, tuple[str, ...]] = {
    PartitionName.CAMERA_IID: _CAMERA,
    PartitionName.CAMERA_NONIID: _CAMERA,
    PartitionName.ALBUM: (*_CAMERA, "limit", "mislabelled", "drift"),
    PartitionName.DIRICHLET: ("beta", "min_photos", "test_photos"),
    PartitionName.CLASSES: ("classes_per_client", "test_photos"),
    PartitionName.TWO_CLASSES: ("test_photos",),
    PartitionName.POOLED_HALVES: ("beta", "min_photos"),
    PartitionName.FEATURE_SKEW: ("sigma", "test_photos"),
    PartitionName.CLIENTS: ("unseen",),
}
"""What may be set of each partition; what is set of another partition would have no effect."""
# Of FedConcat and FedClassAvg; and of pFedSim, where half of it is to test with.
_LEAST = {PartitionName.DIRICHLET: 10, PartitionName.POOLED_HALVES: 40}
_AT_LEAST_ONE = ("clients", "per_class", "test_per_class", "limit", "classes_per_client", "min_photos")
_NOT_NEGATIVE = ("seed", "test_photos", "sigma")
_SHARES = ("mislabelled", "drift")


class BadPartition(EdgeClientError):
    """A partition's setting is wrong; the text names it, what was found and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One way in which all cameras of a fleet meet the photos of a pool.

    Attributes:
        seed: Of everything that is drawn.
        clients: The number of trainers. The partitions that divide the pool need it, but for `clients`, where None
            stands for one for each owner that is not unseen.
        per_class: n of a camera or album, at least 1.
        test_per_class: Test photos of each class and client; None: a fifth of `per_class`, at least 1.
        limit: Train photos in an `album`, at most; None: 4 n times the number of classes, together.
        mislabelled: Share of an `album`'s photos that come with a wrong label.
        drift: How far the class mix of an `album`'s arrivals moves over the rounds, 0 (it stays) to 1.
        beta: Concentration of the Dirichlet distribution, > 0.
        min_photos: Photos that each client has at least; None: 10, with pooled halves 40 (of which 20 are trained on).
        classes_per_client: k of #C=k.
        sigma: Standard deviation of the noise, in units of the full range of a pixel, that a client n of n would have.
        test_photos: Test photos of each client, with the class mix of its train photos; None: the
            test photos of each class are divided among those who train on it, in proportion to their train photos.
        unseen: Share of the owners whose photos no client has, 0 to less than 1; with some, the evaluator has theirs.
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
        for key in _AT_LEAST_ONE:
            value = getattr(self, key)
            self._require(key, value is None or value >= 1, "at least 1")
        for key in _NOT_NEGATIVE:
            value = getattr(self, key)
            self._require(key, value is None or 0 <= value < math.inf, "0 or more")
        for key in _SHARES:
            self._require(key, 0 <= getattr(self, key) <= 1, "0 to 1")
        self._require("beta", 0 < self.beta < math.inf, "more than 0")
        self._require("unseen", 0 <= self.unseen < 1, "0 or more and less than 1")

    @classmethod
    def of(cls, name: PartitionName, settings: Mapping[str, Any], *, seed: int, clients: int | None) -> Self:
        """The partition with these settings, by the names of the attributes; the others have their defaults.

        Raises:
            BadPartition: A setting is not one of this partition, or out of its range.
        """
        allowed = SETTINGS[name]
        if wrong := [key for key in settings if key not in allowed]:
            raise BadPartition(f"{wrong[0]!r} is no setting of partition {name.value}; it has {', '.join(allowed)}")
        return cls(name=name, seed=seed, clients=clients, **settings)

    @property
    def summary(self) -> str:
        """Name and settings, for people."""
        told = {key: self._effective(key) for key in SETTINGS[self.name]}
        parts = [f"{key.replace('_', ' ')} {value:g}" for key, value in told.items() if value is not None]
        return ", ".join([self.name.value, *parts])

    def album(self, pool: PhotoPool, index: int, made: Path | None = None) -> Album:
        """The album of client `index`, counted from 0.

        Args:
            pool: The photos.
            index: The client.
            made: Folder for photos that the partition makes, which many fleets may share; `feature-skew` needs one.

        Raises:
            TooFewPhotos: Some class has fewer photos than the partition may draw.
            Unservable: The pool cannot be divided so among the clients.
            PoolUnusable: With `clients`: photos have no owners, or a client none to train on or be tested with.
        """
        if self.name is PartitionName.ALBUM:
            limit = 4 * self.per_class * len(pool.class_names) if self.limit is None else self.limit
            return FillingAlbum(
                pool, self.seed, index, self.per_class, limit, self.mislabelled, self._test_per_class, self.drift
            )
        if self.name in (PartitionName.CAMERA_IID, PartitionName.CAMERA_NONIID):
            iid = self.name is PartitionName.CAMERA_IID
            return CameraAlbum(pool, self.seed, index, iid, self.per_class, self._test_per_class)
        photos = divide(self._division(pool), pool)[index]
        if self.name is not PartitionName.FEATURE_SKEW:
            return FixedAlbum(photos)
        if made is None:
            raise ValueError("partition feature-skew makes photos; give a folder for them")
        return NoisyAlbum(photos, self.seed, self.sigma * index / self._clients, made)

    def evaluator_album(self, pool: PhotoPool) -> Album:
        """What an evaluator holds: all test photos, or all of unseen owners.

        No client trains on any of them; with `pooled-halves`, or a split that the folder came with, on copies it may.

        Raises:
            Unservable, PoolUnusable: As `album`.
        """
        if self.name is PartitionName.CLIENTS and self.unseen:
            return FixedAlbum(unseen_photos(self._division(pool), pool))
        if self.name is not PartitionName.POOLED_HALVES:
            return EvaluatorAlbum(pool)
        return FixedAlbum(
            tuple(photo for photos in divide(self._division(pool), pool) for photo in photos if photo.is_test)
        )

    def owners_of(self, pool: PhotoPool, index: int) -> tuple[str, ...]:
        """The owners whose photos client `index` has; none where clients are not made of owners.

        Raises:
            Unservable, PoolUnusable: As `album`.
        """
        return dealt_owners(self._division(pool), pool)[index] if self.name is PartitionName.CLIENTS else ()

    def unseen_owners(self, pool: PhotoPool) -> tuple[str, ...]:
        """The owners whose photos no client has, whatever the number of clients.

        Raises:
            Unservable, PoolUnusable: As `album`.
        """
        return unseen_owners(self.seed, self.unseen, pool) if self.name is PartitionName.CLIENTS else ()

    def clients_of(self, pool: PhotoPool) -> int:
        """How many trainers there are: `clients`, or one for each owner that is not unseen.

        Raises:
            Unservable, PoolUnusable: As `album`.
            BadPartition: Nothing says how many.
        """
        if self.name is PartitionName.CLIENTS and self.clients is None:
            return len(pool.owners) - len(self.unseen_owners(pool))
        return self._clients

    def _division(self, pool: PhotoPool) -> Division:
        rule = Rule(self.name.value)
        return Division(
            rule=rule,
            seed=self.seed,
            clients=self.clients_of(pool),
            beta=self.beta,
            least=self._effective("min_photos") or 1,
            per_client=self.classes_per_client,
            test_photos=self.test_photos,
            unseen=self.unseen,
        )

    @property
    def _clients(self) -> int:
        if self.clients is None:
            raise BadPartition(
                f"partition {self.name.value} divides the photos among the clients; say how many `clients`"
            )
        return self.clients

    @property
    def _test_per_class(self) -> int:
        return max(1, self.per_class // 5) if self.test_per_class is None else self.test_per_class

    def _effective(self, key: str) -> Any:
        return _LEAST.get(self.name) if key == "min_photos" and self.min_photos is None else getattr(self, key)

    def _require(self, key: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise BadPartition(f"{key} of partition {self.name.value} is {getattr(self, key)}; allowed is {allowed}")
