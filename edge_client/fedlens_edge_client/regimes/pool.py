"""The photos of a study: one image folder, known in full, from which emulated cameras draw."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from fedlens_edge_client.album import Photo
from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.folder_album import UNREADABLE
from fedlens_proto import photos

HELD_OUT = 5  # one photo in five of every class is a test photo where the folder has no split of its own


class PoolUnusable(EdgeClientError):
    """The image folder cannot serve a study; the text names the folder or class and what it must have."""


class TooFewPhotos(PoolUnusable):
    """A class has fewer photos than a regime may draw at once; add photos or ask for fewer."""

    def __init__(self, class_name: str, found: int, needed: int, what: str, advice: str) -> None:
        """`what` is the kind of photos, such as `train photos in photos/train`."""
        super().__init__(f"class {class_name!r} has {found} {what}, at least {needed} are needed; {advice}")
        self.class_name = class_name
        self.found = found
        self.needed = needed


@dataclass(frozen=True, slots=True)
class PoolPhoto:
    """One photo: an album entry without label and side."""

    path: Path
    digest: bytes
    copy: int


@dataclass(frozen=True, eq=False)
class PhotoPool:
    """Every photo below a folder, by class and side; two pools are equal only if they are the same object.

    Attributes:
        root: The folder.
        class_names: Names of the class folders, ascending.
        train: For each class its train photos, ordered by path.
        test: For each class its test photos, none of which occurs in `train`.
        skipped: For each reason the files that are no usable photos, relative to `root`.
    """

    root: Path
    class_names: tuple[str, ...]
    train: tuple[tuple[PoolPhoto, ...], ...]
    test: tuple[tuple[PoolPhoto, ...], ...]
    skipped: Mapping[str, tuple[str, ...]]

    @classmethod
    def open(cls, root: Path) -> Self:
        """Read `root`: either `train` and `test` with one folder per class each, or one folder per class.

        Without a split of its own, one photo in five of every class (at least one) is held out for tests: those
        with the smallest hashes, so that equal files are on one side.

        Raises:
            PoolUnusable: There is no such folder, fewer than two classes, or a class on one side only.
        """
        if not root.is_dir():
            raise PoolUnusable(f"{root} is no folder; give one that has a sub-folder of photos for each class")
        listing = _Listing(root)
        if (root / "train").is_dir() and (root / "test").is_dir():
            train, test = listing.classes(root / "train"), listing.classes(root / "test")
            if one_sided := sorted(train.keys() ^ test.keys()):
                missing = "test" if one_sided[0] in train else "train"
                raise PoolUnusable(f"class {one_sided[0]!r} has no folder in {root / missing}; both sides need it")
        else:
            train, test = {}, {}
            for name, members in listing.classes(root).items():
                train[name], test[name] = _hold_out(members)
        if len(train) < 2:
            found = ", ".join(train) or "none"
            raise PoolUnusable(
                f"{root} must have a sub-folder of photos for each of two or more classes; found {found}"
            )
        names = tuple(sorted(train))
        return cls(
            root=root,
            class_names=names,
            train=tuple(train[name] for name in names),
            test=tuple(test[name] for name in names),
            skipped={reason: tuple(files) for reason, files in sorted(listing.skipped.items())},
        )

    def require(self, *, train: int, test: int, advice: str) -> None:
        """Check that every class has this many photos on each side.

        Raises:
            TooFewPhotos: Names the first class that has not.
        """
        for side, needed, members in (("train", train, self.train), ("test", test, self.test)):
            for name, found in zip(self.class_names, members, strict=True):
                if len(found) < needed:
                    raise TooFewPhotos(name, len(found), needed, f"{side} photos in {self.root}", advice)

    def entry(self, label: int, photo: PoolPhoto, *, is_test: bool) -> Photo:
        """The album entry of a photo under the name of class `label`."""
        return Photo(photo.digest, photo.copy, self.class_names[label], photo.path, is_test)


class _Listing:
    """Reads class folders; copies of one file are numbered over the whole pool, so that each entry is unique."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._copies: Counter[bytes] = Counter()
        self.skipped: dict[str, list[str]] = {}

    def classes(self, folder: Path) -> dict[str, tuple[PoolPhoto, ...]]:
        return {child.name: self._photos(child) for child in photos.class_folders(folder)}

    def _photos(self, folder: Path) -> tuple[PoolPhoto, ...]:
        found = photos.list_photos(folder)
        for reason, files in found.skipped.items():
            self._skip(reason, *files)
        members = []
        for path in found.photos:
            try:
                digest = sha256(path.read_bytes()).digest()
            except OSError:
                self._skip(UNREADABLE, path)
                continue
            members.append(PoolPhoto(path, digest, self._copies[digest]))
            self._copies[digest] += 1
        return tuple(members)

    def _skip(self, reason: str, *files: Path) -> None:
        self.skipped.setdefault(reason, []).extend(str(file.relative_to(self._root)) for file in files)


def _hold_out(members: tuple[PoolPhoto, ...]) -> tuple[tuple[PoolPhoto, ...], tuple[PoolPhoto, ...]]:
    digests = sorted({m.digest for m in members}, key=lambda digest: sha256(b"fedlens/held-out/v1" + digest).digest())
    held = set(digests[: -(-len(digests) // HELD_OUT)])
    return tuple(m for m in members if m.digest not in held), tuple(m for m in members if m.digest in held)
