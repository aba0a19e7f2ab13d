"""From an album's snapshot to the rows that programs take, decoding and embedding each photo only once."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client import features
from fedlens_edge_client.album import AlbumSnapshot, Photo
from fedlens_edge_client.engines import Engine, Rows
from fedlens_edge_client.features import FeatureCache
from fedlens_edge_client.folder_album import UNREADABLE
from fedlens_proto import photos
from fedlens_proto.errors import PhotoUnreadable
from fedlens_proto.v1 import manifest_pb2

CHANGED = "photos that have changed or gone since the album was read"
_STORE_EVERY = 64


@dataclass(frozen=True)
class PhotoSet:
    """Photos as a pass sees them, sorted by (digest, copy).

    Attributes:
        entries: (digest, copy) of each row.
        rows: What programs take.
    """

    entries: tuple[tuple[bytes, int], ...]
    rows: Rows

    def __len__(self) -> int:
        """How many photos."""
        return len(self.entries)


@dataclass(frozen=True)
class PassPhotos:
    """The photos of one pass.

    Attributes:
        train: Trained on.
        test: Evaluated on.
        skipped: Names of files left out, by reason.
    """

    train: PhotoSet
    test: PhotoSet
    skipped: dict[str, tuple[str, ...]]


def prepare(
    snapshot: AlbumSnapshot,
    engine: Engine,
    cache: FeatureCache,
    *,
    only_test: bool = False,
    on_photo: Callable[[int, int], None] = lambda done, total: None,
) -> PassPhotos:
    """Read, decode and embed what is not in `cache` yet.

    Args:
        snapshot: The album.
        engine: Embeds, if the bundle has a frozen backbone.
        cache: Of features, or of pixels if all layers train.
        only_test: Every photo is evaluated on, as an evaluator does.
        on_photo: Called after each photo that was not in the cache, with how many are done and to do. What it raises
            ends the preparation; nothing is lost by that.

    Raises:
        EngineError: A photo could not be embedded.
    """
    manifest = engine.bundle.manifest
    labels = {name: index for index, name in enumerate(manifest.class_names)}
    skipped: dict[str, list[str]] = {reason: list(names) for reason, names in snapshot.skipped.items()}
    known: list[Photo] = []
    for photo in sorted(snapshot.photos, key=lambda p: (p.digest, p.copy)):
        if photo.label in labels:
            known.append(photo)
        else:
            skipped.setdefault(f"class {photo.label!r} is not in the model", []).append(_name(photo))
    values = _values(known, engine, cache, skipped, on_photo)
    usable = [photo for photo in known if photo.digest in values]

    def chosen(is_test: bool) -> PhotoSet:
        mine = [photo for photo in usable if (only_test or photo.is_test) == is_test]
        inputs = _inputs((values[photo.digest] for photo in mine), len(mine), manifest)
        classes = np.array([labels[photo.label] for photo in mine], np.int64)
        return PhotoSet(tuple((photo.digest, photo.copy) for photo in mine), Rows(inputs, classes))

    return PassPhotos(chosen(False), chosen(True), {why: tuple(sorted(names)) for why, names in skipped.items()})


def _values(
    wanted: list[Photo],
    engine: Engine,
    cache: FeatureCache,
    skipped: dict[str, list[str]],
    on_photo: Callable[[int, int], None],
) -> dict[bytes, bytes]:
    """What is cached of each photo, by digest; those that cannot be read go to `skipped`."""
    name = features.space(engine.bundle.manifest)
    values = cache.get(name, {photo.digest: None for photo in wanted})
    missing = {photo.digest: photo for photo in wanted if photo.digest not in values}
    fresh: dict[bytes, bytes] = {}
    try:
        for done, photo in enumerate(missing.values(), start=1):
            try:
                fresh[photo.digest] = _compute(photo, engine)
            except PhotoUnreadable:
                skipped.setdefault(UNREADABLE, []).append(_name(photo))
            except (_PhotoChanged, OSError):
                skipped.setdefault(CHANGED, []).append(_name(photo))
            if len(fresh) == _STORE_EVERY:
                cache.put(name, fresh)
                values.update(fresh)
                fresh.clear()
            on_photo(done, len(missing))
    finally:
        if fresh:
            cache.put(name, fresh)
            values.update(fresh)
    return values


def _name(photo: Photo) -> str:
    """For people: as the folder album names files."""
    return os.fsencode(f"{photo.label}/{photo.path.name}").decode(errors="replace")


class _PhotoChanged(Exception):
    """A file no longer has the content that its digest says."""


def _compute(photo: Photo, engine: Engine) -> bytes:
    manifest = engine.bundle.manifest
    raw = photo.path.read_bytes()
    if sha256(raw).digest() != photo.digest:
        raise _PhotoChanged
    pixels = photos.load(BytesIO(raw), manifest.preprocessing.height, manifest.preprocessing.width)
    if _is_whole_model(manifest):
        return pixels.tobytes()
    return np.ascontiguousarray(engine.embed(photos.as_input(pixels)[np.newaxis]), "<f4").tobytes()


def _inputs(values: Iterable[bytes], count: int, manifest: manifest_pb2.Manifest) -> NDArray[np.float32]:
    joined = b"".join(values)
    if _is_whole_model(manifest):
        shape = (count, 3, manifest.preprocessing.height, manifest.preprocessing.width)
        return photos.as_input(np.frombuffer(joined, np.uint8).reshape(shape))
    if count == 0:
        return np.zeros((0, 1), np.float32)
    return np.frombuffer(joined, "<f4").astype(np.float32, copy=False).reshape(count, -1)


def _is_whole_model(manifest: manifest_pb2.Manifest) -> bool:
    return manifest.bundle_class == manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL
