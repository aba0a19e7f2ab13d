"""Augmented views of train photos.

A whole-model bundle makes a view from the assignment's seed when a step first needs it; the view is the same in every
epoch of the local training. With a frozen backbone, a fixed number of views is embedded when the photo arrives, and the
seed selects some of them. Test photos are never augmented.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Engine
from fedlens_proto import keyed_hash, manifest
from fedlens_proto.v1 import manifest_pb2

MAX_CACHED_BYTES = 256 << 20
"""Bytes of views that are kept in memory for the next epoch; others are computed again."""

NO_SEED = bytes(keyed_hash.DIGEST_BYTES)
"""Seed of stored views: they belong to no assignment, so all assignments share their features."""


def uniforms(bundle: manifest_pb2.Manifest, seed: bytes, photo: bytes, views: int) -> NDArray[np.float32]:
    """Uniform random numbers for program `view`, for views 0 .. views - 1 of a photo, float32 [views, r]."""
    slots = manifest.program(bundle, "view").inputs
    count = next(slot.shape[1] for slot in slots if slot.kind == manifest_pb2.SLOT_KIND_UNIFORM)
    return np.stack([keyed_hash.view_uniforms(seed, photo, view, int(count)) for view in range(views)])


@dataclass
class MadeViews:
    """`Views` of photos, computed by the bundle's program on first use.

    Attributes:
        engine: The engine that runs the program.
        photos: float32 [N, 3, H, W] in 0..1.
        digests: The photos' digests, in the same order.
        seed: The assignment's seed.
        max_cached_bytes: The most bytes of views to keep in memory.
    """

    engine: Engine
    photos: NDArray[np.float32]
    digests: Sequence[bytes]
    seed: bytes
    max_cached_bytes: int = MAX_CACHED_BYTES
    _cached: dict[int, NDArray[np.float32]] = field(default_factory=dict[int, NDArray[np.float32]], init=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """As `Views.shape`."""
        return (len(self.photos), self.engine.bundle.manifest.views, *self.photos.shape[1:])

    def take(self, indices: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """As `Views.take`."""
        rows = [int(index) for index in indices]
        made = self._made([row for row in dict.fromkeys(rows) if row not in self._cached])
        for target, row in zip(out, rows, strict=True):
            target[...] = made[row] if row in made else self._cached[row]
        room = self.max_cached_bytes // max(1, 4 * math.prod(self.shape[1:]))
        for row, views in list(made.items())[: room - len(self._cached)]:
            self._cached[row] = views

    def _made(self, rows: list[int]) -> dict[int, NDArray[np.float32]]:
        if not rows:
            return {}
        bundle, count = self.engine.bundle.manifest, self.shape[1]
        drawn = [uniforms(bundle, self.seed, self.digests[row], count) for row in rows]
        photos = np.repeat(self.photos[rows], count, axis=0)
        views = self.engine.view(photos, np.concatenate(drawn))
        return dict(zip(rows, views.reshape(len(rows), *self.shape[1:]), strict=True))


class ChosenViews:
    """`Views` chosen from the stored views of each photo."""

    def __init__(self, stored: NDArray[np.float32], digests: Sequence[bytes], seed: bytes, count: int) -> None:
        """`stored` is float32 [N, A, F]; seed and digest choose `count` different views of A."""
        choices = [keyed_hash.view_choice(seed, digest, stored.shape[1], count) for digest in digests]
        chosen = np.array(choices, np.int64).reshape(len(digests), count)
        self._views = np.take_along_axis(stored, chosen[:, :, np.newaxis], axis=1)

    @property
    def shape(self) -> tuple[int, ...]:
        """As `Views.shape`."""
        return self._views.shape

    def take(self, indices: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """As `Views.take`."""
        self._views.take(indices, axis=0, out=out, mode="clip")
