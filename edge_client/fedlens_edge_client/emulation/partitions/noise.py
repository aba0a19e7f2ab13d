"""Feature skew: photos with noise whose strength differs by client, as from cameras of different quality.

Paper: NIID-Bench (Li et al., ICDE 2022, https://arxiv.org/abs/2102.02079), section 4.2, noise-based feature imbalance.

    paper        here     meaning
    i, N         -        client and number of clients; clients count from 0, so the first one's photos have no noise
    sigma * i/N  level    standard deviation of the Gaussian noise, in units of the full range of a pixel

Deviations: the noise of a photo is drawn once, not in each epoch, because a phone's photo does not change. The paper
calls sigma * i/N a variance; here, as in the authors' code, it is the standard deviation.
"""

import struct
import threading
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from secrets import token_hex

import numpy as np
from PIL import Image

from fedlens_edge_client.emulation.partitions.camera import DOMAIN
from fedlens_edge_client.errors import AlbumError
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo
from fedlens_proto import photos
from fedlens_proto.errors import PhotoUnreadable

LARGEST_SIDE = 256
"""Larger photos are scaled down to this first: scaling after the noise would average it away."""


class NoisyAlbum:
    """The same photos in every round, as noisy copies that are made on first use."""

    def __init__(self, originals: tuple[Photo, ...], seed: int, level: float, made: Path) -> None:
        """Describe the album; copies are made later.

        Args:
            originals: Photos without noise.
            seed: Seed of the noise; each photo has noise of its own.
            level: Standard deviation; at 0 the album holds the originals.
            made: Folder for the copies; existing ones are used.
        """
        self._originals = originals
        self._seed = seed
        self._level = level
        self._made = made
        self._held: tuple[Photo, ...] | None = None if level > 0 else originals
        self._making = threading.Lock()

    def photos(self, round_number: int) -> AlbumSnapshot:
        """All photos in every round; an unreadable photo has no copy and is there itself.

        Raises:
            AlbumError: The copies cannot be written.
        """
        with self._making:
            if self._held is None:
                try:
                    self._held = tuple(self._noisy(photo) for photo in self._originals)
                except OSError as error:
                    raise AlbumError(f"noisy copies of photos cannot be kept in {self._made}: {error}") from error
        return AlbumSnapshot(photos=self._held, skipped={})

    def _noisy(self, photo: Photo) -> Photo:
        key = sha256(f"{DOMAIN}noise/v1".encode() + struct.pack("<Qd", self._seed, self._level) + photo.digest).digest()
        path = self._made / key.hex()[:2] / f"{key.hex()}.png"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            try:
                content = noisy_copy(
                    photo.path, self._level, np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))
                )
            except (FileNotFoundError, PhotoUnreadable):
                return photo
            _write(path, content)
        return Photo(sha256(content).digest(), photo.copy, photo.label, path, photo.is_test)


def noisy_copy(original: Path, level: float, random: np.random.Generator) -> bytes:
    """A PNG of the photo's central square with Gaussian noise on every channel, clipped to the range of a pixel.

    Args:
        original: The photo.
        level: Standard deviation, in units of the full range.
        random: Generator of the noise.

    Raises:
        PhotoUnreadable: The file is not a photo.
        FileNotFoundError: The file is gone.
    """
    side = min(photos.shorter_side(original), LARGEST_SIDE)
    pixels = photos.as_input(photos.load(original, side, side))
    noisy = np.clip(pixels + random.normal(0.0, level, pixels.shape), 0.0, 1.0)
    picture = Image.fromarray(np.round(noisy * 255).astype(np.uint8).transpose(1, 2, 0))
    content = BytesIO()
    # Noise cannot be compressed; uncompressed, the bytes do not depend on a compressor's version.
    picture.save(content, "PNG", compress_level=0)
    return content.getvalue()


def _write(path: Path, content: bytes) -> None:
    """Write a file completely, even if another process writes the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
