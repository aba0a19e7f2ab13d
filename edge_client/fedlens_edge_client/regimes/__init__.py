"""Regimes: what an emulated camera holds in each round, a pure function of (seed, client index, round).

`camera-iid`, `camera-noniid`   a fresh local set in every round (`camera.py`)
`album`                         photos arrive, fill a limit, go; labels get corrected (`filling.py`)
"""

from dataclasses import dataclass
from enum import StrEnum

from fedlens_edge_client.album import Album, AlbumSnapshot
from fedlens_edge_client.regimes.camera import CameraAlbum
from fedlens_edge_client.regimes.filling import FillingAlbum
from fedlens_edge_client.regimes.pool import PhotoPool, PoolPhoto, PoolUnusable, TooFewPhotos

__all__ = ["EvaluatorAlbum", "PhotoPool", "PoolPhoto", "PoolUnusable", "Regime", "RegimeName", "TooFewPhotos"]


class RegimeName(StrEnum):
    """Names of the regimes, as on the command line."""

    CAMERA_IID = "camera-iid"
    CAMERA_NONIID = "camera-noniid"
    ALBUM = "album"


@dataclass(frozen=True, kw_only=True)
class Regime:
    """One way in which all cameras of a fleet meet the photos of a pool.

    Attributes:
        per_class: n of the regime, at least 1.
        test_per_class: Test photos of each class and client; None: a fifth of `per_class`, at least 1.
        limit: Train photos in an `album`, at most; None: four rounds' worth, 4 n for each class.
        mislabelled: Share of an `album`'s photos that come with a wrong label.
    """

    name: RegimeName
    seed: int
    per_class: int
    test_per_class: int | None = None
    limit: int | None = None
    mislabelled: float = 0.1

    def album(self, pool: PhotoPool, index: int) -> Album:
        """The album of client `index`, counted from 0.

        Raises:
            TooFewPhotos: Some class has fewer photos than the regime may draw.
        """
        test = max(1, self.per_class // 5) if self.test_per_class is None else self.test_per_class
        if self.name is RegimeName.ALBUM:
            limit = 4 * self.per_class * len(pool.class_names) if self.limit is None else self.limit
            return FillingAlbum(pool, self.seed, index, self.per_class, limit, self.mislabelled, test)
        return CameraAlbum(pool, self.seed, index, self.name is RegimeName.CAMERA_IID, self.per_class, test)


@dataclass(frozen=True)
class EvaluatorAlbum:
    """Every test photo of a pool, in every round."""

    pool: PhotoPool

    def photos(self, round_number: int) -> AlbumSnapshot:
        """All test photos; the round does not matter."""
        del round_number
        return AlbumSnapshot(
            photos=tuple(
                self.pool.entry(label, photo, is_test=True)
                for label, members in enumerate(self.pool.test)
                for photo in members
            ),
            skipped={},
        )
