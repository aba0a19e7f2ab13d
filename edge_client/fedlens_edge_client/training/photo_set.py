"""The rows of an album's snapshot for programs; each photo is decoded and embedded only once."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Engine, Rows, Views
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.storage.folder_album import UNREADABLE
from fedlens_edge_client.training import features, views
from fedlens_proto import keyed_hash, photos
from fedlens_proto.blob import Blob
from fedlens_proto.errors import BlobError, PhotoUnreadable
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2, update_pb2

CHANGED = "photos that have changed or gone since the album was read"
_STORE_EVERY = 64
# Fewer photos are not divided into some to train on and some for validation.
_LEAST_DIVIDED = 5


@dataclass(frozen=True)
class PhotoSet:
    """Photos with their rows, sorted by (digest, copy).

    Attributes:
        entries: (digest, copy) of each row.
        rows: Inputs and labels for programs.
        stored_views: Features of augmentations of each train photo, float32 [N, A, F], if the bundle stores views.
    """

    entries: tuple[tuple[bytes, int], ...]
    rows: Rows
    stored_views: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        """The number of photos."""
        return len(self.entries)

    def at(self, indices: Sequence[int]) -> "PhotoSet":
        """These photos of the set."""
        rows = Rows(self.rows.inputs[indices], self.rows.labels[indices])
        stored = None if self.stored_views is None else self.stored_views[indices]
        return PhotoSet(tuple(self.entries[i] for i in indices), rows, stored)

    def training_rows(self, engine: Engine, seed: bytes) -> Rows:
        """The rows, with the views for this assignment seed if the bundle's steps take views.

        `engine` augments whole photos when a step first needs them.
        """
        count = engine.bundle.manifest.views
        if not count:
            return self.rows
        digests = [digest for digest, _ in self.entries]
        made: Views
        if self.stored_views is None:
            made = views.MadeViews(engine, self.rows.inputs, digests, seed)
        else:
            made = views.ChosenViews(self.stored_views, digests, seed, count)
        return Rows(self.rows.inputs, self.rows.labels, made)


@dataclass(frozen=True)
class PreparedPhotos:
    """The photos of one round, ready for programs.

    Attributes:
        train: For training.
        test: For evaluation.
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
) -> PreparedPhotos:
    """Read, decode and embed photos that are not in `cache` yet.

    Args:
        snapshot: The album.
        engine: Embeds, if the bundle has a frozen backbone.
        cache: Features, or pixels if all layers train.
        only_test: Treat every photo as a test photo, as an evaluator does.
        on_photo: Called after each photo that was not in the cache, with the numbers done and in all. An exception
            that it raises ends the preparation; finished values stay in the cache.

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
    space = features.space(manifest, engine.program_format)
    values = _values(known, space, partial(_compute, engine=engine), cache, skipped, on_photo)
    usable = [photo for photo in known if photo.digest in values]

    def trained_on(photo: Photo) -> bool:
        return not (only_test or photo.is_test)

    viewed: dict[bytes, bytes] = {}
    if manifest.stored_views:
        name = features.stored_views_space(manifest, engine.program_format)
        wanted = [photo for photo in usable if trained_on(photo)]
        viewed = _values(wanted, name, partial(_compute_views, engine=engine), cache, skipped, on_photo)
        usable = [photo for photo in usable if photo.digest in viewed or not trained_on(photo)]

    def chosen(is_test: bool) -> PhotoSet:
        mine = [photo for photo in usable if trained_on(photo) != is_test]
        inputs = _inputs((values[photo.digest] for photo in mine), len(mine), manifest)
        classes = np.array([labels[photo.label] for photo in mine], np.int64)
        stored = None
        if manifest.stored_views and not is_test:
            joined = np.frombuffer(b"".join(viewed[photo.digest] for photo in mine), "<f4")
            stored = joined.astype(np.float32, copy=False).reshape(len(mine), manifest.stored_views, inputs.shape[1])
        return PhotoSet(tuple((photo.digest, photo.copy) for photo in mine), Rows(inputs, classes), stored)

    return PreparedPhotos(chosen(False), chosen(True), {why: tuple(sorted(names)) for why, names in skipped.items()})


def without_validation(photos: PhotoSet, percent: int) -> tuple[PhotoSet, PhotoSet]:
    """The photos to train on and those for validation, about `percent` of 100 and the same in every round.

    Both are all photos if there are fewer than 5, if one of them would be empty, or if `percent` is 0.
    """
    validation = [i for i, (digest, _) in enumerate(photos.entries) if keyed_hash.is_validation_photo(digest, percent)]
    if len(photos) < _LEAST_DIVIDED or not 0 < len(validation) < len(photos):
        return photos, photos
    return photos.at(sorted(set(range(len(photos))).difference(validation))), photos.at(validation)


def public_photos(bundle: Bundle) -> PhotoSet:
    """The bundle's public photos, in their order.

    Raises:
        AssignmentFailed: Their blob is damaged, or does not hold them.
    """
    public = bundle.manifest.public
    try:
        found = Blob.open(bundle.part(public.sha256), public.sha256)
        inputs, labels = np.array(found["input"]), np.array(found["label"])
    except (BlobError, KeyError) as error:
        raise AssignmentFailed(
            update_pb2.FAILURE_REASON_BUNDLE, f"the public photos cannot be read: {error}"
        ) from error
    if len(inputs) != public.rows or labels.shape != (public.rows,):
        raise AssignmentFailed(update_pb2.FAILURE_REASON_BUNDLE, f"there are not {public.rows} public photos")
    return PhotoSet(tuple((bytes(keyed_hash.DIGEST_BYTES), i) for i in range(len(inputs))), Rows(inputs, labels))


def _values(
    wanted: list[Photo],
    name: bytes,
    compute: Callable[[Photo], bytes],
    cache: FeatureCache,
    skipped: dict[str, list[str]],
    on_photo: Callable[[int, int], None],
) -> dict[bytes, bytes]:
    """The cached or computed value of each photo under `name`, by digest; unreadable photos go to `skipped`."""
    values = cache.get(name, {photo.digest: None for photo in wanted})
    missing = {photo.digest: photo for photo in wanted if photo.digest not in values}
    fresh: dict[bytes, bytes] = {}
    try:
        for done, photo in enumerate(missing.values(), start=1):
            try:
                values[photo.digest] = fresh[photo.digest] = compute(photo)
            except PhotoUnreadable:
                skipped.setdefault(UNREADABLE, []).append(_name(photo))
            except (_PhotoChanged, OSError):
                skipped.setdefault(CHANGED, []).append(_name(photo))
            if len(fresh) == _STORE_EVERY:
                cache.put(name, fresh)
                fresh.clear()
            on_photo(done, len(missing))
    finally:
        if fresh:
            cache.put(name, fresh)
    return values


def _name(photo: Photo) -> str:
    """A printable name for people, as in `FolderAlbum`."""
    return os.fsencode(f"{photo.label}/{photo.path.name}").decode(errors="replace")


class _PhotoChanged(Exception):
    """The content of a file no longer has the album's digest."""


def _compute(photo: Photo, engine: Engine) -> bytes:
    """The photo's pixels, or its features."""
    pixels = _pixels(photo, engine)
    if _is_whole_model(engine.bundle.manifest):
        return pixels.tobytes()
    return _features(photos.as_input(pixels)[np.newaxis], engine)


def _compute_views(photo: Photo, engine: Engine) -> bytes:
    """The features of each of the photo's stored views."""
    manifest = engine.bundle.manifest
    drawn = views.uniforms(manifest, views.NO_SEED, photo.digest, manifest.stored_views)
    repeated = np.repeat(photos.as_input(_pixels(photo, engine))[np.newaxis], manifest.stored_views, axis=0)
    return b"".join(_features(view[np.newaxis], engine) for view in engine.view(repeated, drawn))


def _pixels(photo: Photo, engine: Engine) -> NDArray[np.uint8]:
    rule = engine.bundle.manifest.preprocessing
    raw = photo.path.read_bytes()
    if sha256(raw).digest() != photo.digest:
        raise _PhotoChanged
    return photos.load(BytesIO(raw), rule.height, rule.width)


def _features(photo: NDArray[np.float32], engine: Engine) -> bytes:
    return np.ascontiguousarray(engine.embed(photo), "<f4").tobytes()


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
