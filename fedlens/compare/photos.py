"""The photos of a study: read from its source, limited, and divided by class for pre-training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from shutil import copyfile

from fedlens.compare.study import PhotosSection, StudyError
from fedlens.sources import photos_of
from fedlens.whole_file import replacing
from fedlens_edge_client.emulation.partitions import PhotoPool, PoolPhoto


@dataclass(frozen=True)
class StudyPhotos:
    """The photos of clients and evaluator, and those that pre-train a backbone.

    Attributes:
        pool: Photos of clients and evaluator.
        digest: Digest of the pool.
        public: Folder for pre-training with a sub-folder for each class; None: no pre-training.
        public_digest: Digest of the photos in `public`.
    """

    pool: PhotoPool
    digest: str
    public: Path | None
    public_digest: str


def study_photos(section: PhotosSection, cache: Path, folder: Path) -> StudyPhotos:
    """Read a study's photos, and copy public ones into its folder.

    With `pretrain_classes` = n, n classes, evenly spaced in the order of their names, are public: clients have no
    photos of them, and a backbone is pre-trained on their train photos. No photo is both.

    Args:
        section: The study's `[photos]`.
        cache: Folder for downloaded data sets.
        folder: The study's folder.

    Raises:
        SourceUnavailable, PoolUnusable: The photos cannot be had or used.
        StudyError: Fewer than two classes would be left for one of the sides.
    """
    assert section.source is not None  # checked by `choose`
    whole = PhotoPool.open(photos_of(section.source, cache))
    count = section.pretrain_classes
    if count and not 2 <= count <= len(whole.class_names) - 2:
        raise StudyError(
            f"photos.pretrain_classes: found {count}, must be 2 to {len(whole.class_names) - 2}, "
            f"so that two of the {len(whole.class_names)} classes are left"
        )
    public = {i * len(whole.class_names) // count for i in range(count)}
    private = [i for i in range(len(whole.class_names)) if i not in public]
    pool = replace(
        whole,
        class_names=tuple(whole.class_names[i] for i in private),
        train=tuple(whole.train[i][: section.train_per_class] for i in private),
        test=tuple(whole.test[i][: section.test_per_class] for i in private),
    )
    held = {photo.digest for side in (pool.train, pool.test) for members in side for photo in members}
    chosen = [
        (
            whole.class_names[i],
            [photo for photo in whole.train[i][: section.pretrain_per_class] if photo.digest not in held],
        )
        for i in sorted(public)
    ]
    public_digest = _digest(photos for _, photos in chosen)
    place = folder / "public" / public_digest[:10]
    if chosen:
        _write(place, chosen)
    return StudyPhotos(pool, _digest([*pool.train, *pool.test]), place if chosen else None, public_digest)


def _write(place: Path, chosen: list[tuple[str, list[PoolPhoto]]]) -> None:
    for name, photos in chosen:
        (place / name).mkdir(parents=True, exist_ok=True)
        for number, photo in enumerate(photos):
            copy = place / name / f"{number:06}{photo.path.suffix}"
            if not copy.exists():
                # The partial file is hidden, so that no photo is left by a kill.
                with replacing(copy) as partial:
                    copyfile(photo.path, partial)


def _digest(groups: Iterable[Sequence[PoolPhoto]]) -> str:
    hashed = sha256()
    for photos in groups:
        hashed.update(len(photos).to_bytes(8, "little"))
        for photo in photos:
            hashed.update(photo.digest)
            if photo.owner:
                hashed.update(f"{photo.owner}\n{photo.camera}\n".encode())
    return hashed.hexdigest()
