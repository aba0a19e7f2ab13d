"""Camera partitions: in every round each client has new photos, as if taken since the last one.

Paper: FedNS, the data setting of its experiments (`camera-iid`, `camera-noniid`).

    paper    here        meaning
    n        per_class   photos per class
    -        index       client, counted from 0

The iid partition draws exactly n photos of each class, the non-iid one a uniform integer from 1 to 2n of each, both
without replacement within a client's round. Clients and rounds draw independently, so that they may share photos. Test
photos are drawn once per client, the same number of each class: all results of a client are on the same photos.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TypeVar

import numpy as np

from fedlens_edge_client.emulation.partitions.pool import PhotoPool
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo

T = TypeVar("T")
# Partitions were called regimes; another prefix would draw other photos for the same seed.
DOMAIN = "fedlens/regime/"


def generator(purpose: str, seed: int, index: int, round_number: int) -> np.random.Generator:
    """The generator of one client in one round, for one purpose."""
    digest = sha256((DOMAIN + purpose).encode() + struct.pack("<QQQ", seed, index, round_number)).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def draw(random: np.random.Generator, members: tuple[T, ...], count: int) -> list[T]:
    """`count` different photos out of `members`, with equal probability."""
    return [members[i] for i in random.choice(len(members), count, replace=False)]


@dataclass(frozen=True)
class DrawnAlbum:
    """The base of albums whose photos are drawn from a pool, round by round.

    Attributes:
        per_class: n, at least 1.
        test_per_class: Test photos of each class, the same in every round.
    """

    pool: PhotoPool
    seed: int
    index: int
    per_class: int
    test_per_class: int

    @cached_property
    def test_photos(self) -> tuple[Photo, ...]:
        """The client's test photos."""
        random = generator("test/v1", self.seed, self.index, 0)
        return tuple(
            self.pool.entry(label, photo, is_test=True)
            for label, members in enumerate(self.pool.test)
            for photo in draw(random, members, self.test_per_class)
        )


@dataclass(frozen=True)
class CameraAlbum(DrawnAlbum):
    """An album with new photos in every round; a pure function of (seed, index, round).

    Attributes:
        iid: Exactly `per_class` photos of each class; otherwise a uniform integer from 1 to twice that.
    """

    iid: bool

    def __post_init__(self) -> None:
        """Check that every draw finds enough photos.

        Raises:
            TooFewPhotos: A class has too few.
        """
        name, factor = ("camera-iid", 1) if self.iid else ("camera-noniid", 2)
        self.pool.require(
            train=factor * self.per_class,
            test=self.test_per_class,
            advice=f"partition {name} draws up to {factor * self.per_class} train and {self.test_per_class} test "
            f"photos of each class at {self.per_class} per class: add photos or lower that number",
        )

    def photos(self, round_number: int) -> AlbumSnapshot:
        """The camera's photos of this round."""
        return self._drawn(round_number) if round_number else self._before_rounds

    @cached_property
    def _before_rounds(self) -> AlbumSnapshot:
        # Each check-in counts these.
        return self._drawn(0)

    def _drawn(self, round_number: int) -> AlbumSnapshot:
        n = self.per_class
        random = generator(f"camera-{'iid' if self.iid else 'noniid'}/v1", self.seed, self.index, round_number)
        drawn = [
            photo
            for members in self.pool.train_entries
            for photo in draw(random, members, n if self.iid else int(random.integers(1, 2 * n, endpoint=True)))
        ]
        return AlbumSnapshot(photos=(*drawn, *self.test_photos), skipped={})
