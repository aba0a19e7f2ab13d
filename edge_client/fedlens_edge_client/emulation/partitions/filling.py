"""The `album` partition: photos fill an album up to a limit, the oldest go, and wrong labels are corrected.

    arrivals     in every round a uniform integer from 1 to 2n photos of each class, n = `per_class`, in random
                 order; a photo that arrives again counts as new
    drift        replaces 2n for each class by 2n (1 - d + d w), rounded and at least 1, for drift d and the class's
                 weight w of this round (`drift.py`)
    limit        the album holds the newest `limit` photos
    wrong label  each arrival with probability `mislabelled` has the name of another class at first and is corrected
                 1 to `CORRECTED_WITHIN` rounds later

The arrivals of a round depend on (seed, index, round) alone. So an album of any round is computed from the rounds
before it, newest first, until the limit is reached; every round has at least one photo of each class.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedlens_edge_client.emulation.partitions.camera import DrawnAlbum, draw, generator
from fedlens_edge_client.emulation.partitions.drift import class_weights
from fedlens_edge_client.emulation.partitions.listing import PoolPhoto
from fedlens_edge_client.storage.album import AlbumSnapshot

CORRECTED_WITHIN = 3


@dataclass(frozen=True, slots=True)
class Arrival:
    """A photo in the album, with its true class, and another one before round `corrected`."""

    photo: PoolPhoto
    label: int
    first_label: int
    corrected: int

    def label_in(self, round_number: int) -> int:
        """The photo's class in this round."""
        return self.label if round_number >= self.corrected else self.first_label


@dataclass(frozen=True)
class FillingAlbum(DrawnAlbum):
    """An album that grows from round to round; a pure function of (seed, index, round).

    Attributes:
        per_class: n, at least 1; without drift, n + 1/2 photos of each class arrive in a round on average.
        limit: Maximum number of train photos, at least 1.
        mislabelled: Fraction of arrivals with a wrong label at first, 0 to 1.
        test_per_class: Test photos of each class, the same in every round, with correct labels.
        drift: Strength of the change of the arrivals' class mix, 0 to 1.
    """

    limit: int
    mislabelled: float
    drift: float = 0.0

    def __post_init__(self) -> None:
        """Check that every draw finds enough photos.

        Raises:
            TooFewPhotos: A class has too few.
        """
        self.pool.require(
            train=2 * self.per_class,
            test=self.test_per_class,
            advice=f"partition album lets up to {2 * self.per_class} photos of each class arrive in a round and keeps "
            f"{self.test_per_class} test photos at {self.per_class} per class: add photos or lower that number",
        )

    def photos(self, round_number: int) -> AlbumSnapshot:
        """The album in this round, oldest photos first; before any round, that of the first one."""
        return self._filled(round_number) if round_number else self._before_rounds

    @cached_property
    def _before_rounds(self) -> AlbumSnapshot:
        # Each check-in counts these.
        return self._filled(1)

    def _filled(self, round_number: int) -> AlbumSnapshot:
        held: dict[PoolPhoto, Arrival] = {}
        for arrival in self._newest_first(round_number):
            held.setdefault(arrival.photo, arrival)
            if len(held) == self.limit:
                break
        train = [self.pool.entry(a.label_in(round_number), a.photo, is_test=False) for a in reversed(held.values())]
        return AlbumSnapshot(photos=(*train, *self.test_photos), skipped={})

    def arrivals(self, round_number: int) -> list[Arrival]:
        """The arrivals at the start of this round, in order."""
        random = generator("album/v1", self.seed, self.index, round_number)
        classes = len(self.pool.train)
        came = []
        weights = class_weights(self.seed, self.index, round_number, classes)
        most = np.maximum(1, np.round(2 * self.per_class * (1 - self.drift + self.drift * weights))).astype(int)
        for label, members in enumerate(self.pool.train):
            for photo in draw(random, members, int(random.integers(1, most[label], endpoint=True))):
                other = (label + int(random.integers(1, classes))) % classes
                wrong = random.random() < self.mislabelled
                corrected = round_number + int(random.integers(1, CORRECTED_WITHIN, endpoint=True))
                came.append(Arrival(photo, label, other if wrong else label, corrected))
        return [came[i] for i in random.permutation(len(came))]

    def _newest_first(self, round_number: int) -> Iterator[Arrival]:
        for earlier in range(round_number, 0, -1):
            yield from reversed(self.arrivals(earlier))
