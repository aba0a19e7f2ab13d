"""How large a demo can be with the photos that are there."""

from dataclasses import dataclass
from typing import Self

from fedlens_edge_client.regimes import PhotoPool

LEAST_TRAIN = 2  # `camera-noniid` draws up to twice n photos of a class, and n is at least 1
LEAST_TEST = 1
MOST_PER_CLASS = 40
MOST_TEST_PER_CLASS = 10
# A round's photos of one class should be a small part of what there is, so that rounds differ.
ROUNDS_WORTH = 12
STEPS_PHOTOS = 550
MOST_EPOCHS = 5


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The numbers of a demo.

    Attributes:
        per_class: n of the regime.
        test_per_class: Test photos of each class and client.
        epochs: Passes over a round's photos: more where there are few.
    """

    clients: int
    per_class: int
    test_per_class: int
    epochs: int

    @classmethod
    def of(cls, pool: PhotoPool, clients: int) -> Self:
        """At most `clients` clients, fewer where a class has fewer photos than that.

        Raises:
            TooFewPhotos: A class has not even what the smallest demo needs.
        """
        pool.require(
            train=LEAST_TRAIN,
            test=LEAST_TEST,
            advice=f"the smallest demo takes {LEAST_TRAIN} train photos and {LEAST_TEST} test photo of each class",
        )
        least_train, least_test = min(map(len, pool.train)), min(map(len, pool.test))
        per_class = max(1, min(MOST_PER_CLASS, least_train // ROUNDS_WORTH))
        return cls(
            clients=max(2, min(clients, least_train)),
            per_class=per_class,
            test_per_class=min(MOST_TEST_PER_CLASS, least_test),
            epochs=max(2, min(MOST_EPOCHS, STEPS_PHOTOS // (per_class * len(pool.class_names)))),
        )
