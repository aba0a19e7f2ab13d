"""Feature skew: each client's photos with noise of its own strength, as from cameras of different quality.

Paper: NIID-Bench (Li et al., ICDE 2022, https://arxiv.org/abs/2102.02079), section 4.2, noise-based feature imbalance.

    paper        here     meaning
    i, N         -        client and number of clients; clients count from 0, so that the first one's photos are clean
    sigma * i/N  level    standard deviation of the Gaussian noise, in units of the full range of a pixel

Deviations: the noise of a photo is drawn once, not in each epoch, because a phone's photo does not change. The paper
calls sigma * i/N a variance; the authors' code takes it as the standard deviation, and so does this.
"""

import struct
import threading
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from secrets import token_hex

import numpy as np
from PIL import Image

from fedlens_edge_client.errors import AlbumError
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo
from fedlens_proto import photos
from fedlens_proto.errors import PhotoUnreadable

LARGEST_SIDE = 256
"""Larger photos are scaled down to this first: scaled later, their noise would be averaged away."""


class NoisyAlbum:
    """The same photos in every round, as noisy copies that are made when they are first asked for."""

    def __init__(self, originals: tuple[Photo, ...], seed: int, level: float, made: Path) -> None:
        """Nothing is made yet.

        Args:
            originals: What the copies are made of.
            seed: Of the noise; each photo has its own.
            level: Standard deviation, 0 or more; at 0 the originals are the album.
            made: Folder for the copies. One that is there already is taken.
        """
        self._originals = originals
        self._seed = seed
        self._level = level
        self._made = made
        self._held: tuple[Photo, ...] | None = None if level > 0 else originals
        self._making = threading.Lock()

    def photos(self, round_number: int) -> AlbumSnapshot:
        """All photos; the round does not matter. A photo that cannot be decoded is there as it is.

        Raises:
            AlbumError: The copies cannot be written.
        """
        del round_number
        with self._making:
            if self._held is None:
                try:
                    self._held = tuple(self._noisy(photo) for photo in self._originals)
                except OSError as error:
                    raise AlbumError(f"noisy copies of photos cannot be kept in {self._made}: {error}") from error
        return AlbumSnapshot(photos=self._held, skipped={})

    def _noisy(self, photo: Photo) -> Photo:
        key = sha256(b"fedlens/regime/noise/v1" + struct.pack("<Qd", self._seed, self._level) + photo.digest).digest()
        path = self._made / key.hex()[:2] / f"{key.hex()}.png"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            try:
                content = noisy_copy(photo.path, self._level, np.random.Generator(np.random.PCG64(_number(key))))
            except (FileNotFoundError, PhotoUnreadable):
                return photo
            _write(path, content)
        return Photo(sha256(content).digest(), photo.copy, photo.label, path, photo.is_test)


def noisy_copy(original: Path, level: float, random: np.random.Generator) -> bytes:
    """A PNG of the photo's central square with Gaussian noise on every channel, clipped to the range of a pixel.

    Args:
        original: The photo.
        level: Standard deviation, in units of the full range.
        random: Of the noise.

    Raises:
        PhotoUnreadable: It is none.
        FileNotFoundError: It is gone.
    """
    side = min(photos.shorter_side(original), LARGEST_SIDE)
    pixels = photos.as_input(photos.load(original, side, side))
    noisy = np.clip(pixels + random.normal(0.0, level, pixels.shape), 0.0, 1.0)
    picture = Image.fromarray(np.round(noisy * 255).astype(np.uint8).transpose(1, 2, 0))
    content = BytesIO()
    # Noise cannot be compressed, and so the bytes do not depend on the version of a compressor.
    picture.save(content, "PNG", compress_level=0)
    return content.getvalue()


def _number(key: bytes) -> int:
    return int.from_bytes(key, "little")


def _write(path: Path, content: bytes) -> None:
    """Put a whole file there, whoever else does the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
