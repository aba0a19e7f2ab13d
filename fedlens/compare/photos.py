"""The photos of a study: read from its source, limited, and divided among clients, pre-training and the public."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from shutil import copyfile

from fedlens.compare.study import PhotosSection, StudyError
from fedlens.sources import photos_of
from fedlens.whole_file import replacing
from fedlens_edge_client.emulation.partitions import PhotoPool, PoolPhoto

_PUBLIC = b"fedlens/study/public/v1"


@dataclass(frozen=True)
class StudyPhotos:
    """The photos of clients and evaluator, those that pre-train a backbone, and those that all clients get.

    Attributes:
        pool: Photos of clients and evaluator.
        digest: Digest of the pool.
        pretraining: Photos for pre-training; None: no pre-training.
        public: Photos that all clients get; None: there are none.
    """

    pool: PhotoPool
    digest: str
    pretraining: "ClassFolders | None"
    public: "ClassFolders | None"


@dataclass(frozen=True)
class ClassFolders:
    """Photos in a folder with a sub-folder for each class, and their digest."""

    folder: Path
    digest: str


def study_photos(section: PhotosSection, cache: Path, folder: Path) -> StudyPhotos:
    """Read a study's photos, and copy those that are in no pool into its folder.

    With `pretrain_classes` = n, n classes, evenly spaced in the order of their names, are for pre-training: clients
    have no photos of them. With `public_per_class` = n, so many train photos of each other class are public, drawn by
    their digests: no client has them, and all clients get them. No photo is for two of these.

    Args:
        section: The study's `[photos]`.
        cache: Folder for downloaded data sets.
        folder: The study's folder.

    Raises:
        SourceUnavailable, PoolUnusable: The photos cannot be had or used.
        StudyError: Fewer than two classes would be left for one of the sides, or a class has too few photos.
    """
    assert section.source is not None  # checked by `choose`
    whole = PhotoPool.open(photos_of(section.source, cache))
    count = section.pretrain_classes
    if count and not 2 <= count <= len(whole.class_names) - 2:
        raise StudyError(
            f"photos.pretrain_classes: found {count}, must be 2 to {len(whole.class_names) - 2}, "
            f"so that two of the {len(whole.class_names)} classes are left"
        )
    withheld = {i * len(whole.class_names) // count for i in range(count)}
    private = [i for i in range(len(whole.class_names)) if i not in withheld]
    names = tuple(whole.class_names[i] for i in private)
    public = [_public(whole.class_names[i], whole.train[i], section) for i in private]
    given = {photo.digest for photos in public for photo in photos}
    pool = replace(
        whole,
        class_names=names,
        train=tuple(
            tuple(photo for photo in whole.train[i][: section.train_per_class] if photo.digest not in given)
            for i in private
        ),
        test=tuple(
            tuple(photo for photo in whole.test[i][: section.test_per_class] if photo.digest not in given)
            for i in private
        ),
    )
    held = given | {photo.digest for side in (pool.train, pool.test) for members in side for photo in members}
    pretraining = [
        [photo for photo in whole.train[i][: section.pretrain_per_class] if photo.digest not in held]
        for i in sorted(withheld)
    ]
    return StudyPhotos(
        pool,
        _digest([*pool.train, *pool.test]),
        _written(folder / "pretraining", [whole.class_names[i] for i in sorted(withheld)], pretraining),
        _written(folder / "public", names, public) if given else None,
    )


def _public(name: str, photos: Sequence[PoolPhoto], section: PhotosSection) -> list[PoolPhoto]:
    """The public photos of a class: of those that clients leave, if they leave any, else of all."""
    wanted = section.public_per_class
    left = photos if section.train_per_class is None else photos[section.train_per_class :]
    found = sorted(
        {photo.digest: photo for photo in left}.values(), key=lambda photo: sha256(_PUBLIC + photo.digest).digest()
    )
    if wanted > len(found):
        raise StudyError(
            f"photos.public_per_class: found {wanted}, must be at most {len(found)}, the train photos of class "
            f"{name!r} beyond train_per_class"
        )
    return found[:wanted]


def _written(folder: Path, names: Sequence[str], photos: Sequence[Sequence[PoolPhoto]]) -> ClassFolders | None:
    """The photos of each class, copied to a folder that is named by their digest; None: there is no class."""
    if not names:
        return None
    digest = _digest(photos)
    place = folder / digest[:10]
    _write(place, list(zip(names, photos, strict=True)))
    return ClassFolders(place, digest)


def _write(place: Path, chosen: Sequence[tuple[str, Sequence[PoolPhoto]]]) -> None:
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
