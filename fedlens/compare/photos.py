"""The photos of a study: from its source, limited and, where it pre-trains, divided by class."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from shutil import copyfile

from fedlens.compare.study import PhotosSection, StudyError
from fedlens.sources import photos_of
from fedlens_edge_client.emulation.partitions import PhotoPool, PoolPhoto


@dataclass(frozen=True)
class StudyPhotos:
    """What clients and evaluator have, and what a backbone is trained on before.

    Attributes:
        pool: Of clients and evaluator.
        digest: Of everything in it.
        public: Folder for pre-training, a sub-folder a class; None: there is none.
        public_digest: Of what is in it.
    """

    pool: PhotoPool
    digest: str
    public: Path | None
    public_digest: str


def study_photos(section: PhotosSection, cache: Path, folder: Path) -> StudyPhotos:
    """Get the photos.

    With `pretrain_classes`, so many of the classes, evenly spaced in the order of their names, are taken from the
    clients altogether: their train photos are public, the others' are not, and no photo is both.

    Args:
        section: What the study says.
        cache: Where data sets are kept that are written once.
        folder: Of the study.

    Raises:
        SourceUnavailable, PoolUnusable: There are no such photos.
        StudyError: Too few classes would be left.
    """
    assert section.source is not None  # `choose` has seen to it
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
                # Hidden, so that what a kill leaves of it is no photo.
                unfinished = copy.with_name(f".{copy.name}")
                copyfile(photo.path, unfinished)
                unfinished.replace(copy)


def _digest(groups: Iterable[Sequence[PoolPhoto]]) -> str:
    hashed = sha256()
    for photos in groups:
        hashed.update(len(photos).to_bytes(8, "little"))
        for photo in photos:
            hashed.update(photo.digest)
            if photo.owner:
                hashed.update(f"{photo.owner}\n{photo.camera}\n".encode())
    return hashed.hexdigest()
