"""A pool of photos: an image folder, read completely, from which emulated clients take their photos."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from fedlens_edge_client.emulation.partitions.held_out import split
from fedlens_edge_client.emulation.partitions.listing import Listing, PoolPhoto, PoolUnusable
from fedlens_edge_client.emulation.partitions.owners import client_folders, lacking, notes_on, read_clients
from fedlens_edge_client.emulation.partitions.table import read_table, table_of
from fedlens_edge_client.storage.album import Photo


class TooFewPhotos(PoolUnusable):
    """A class has fewer photos than a partition may draw at once; add photos or reduce the number."""


@dataclass(frozen=True, eq=False)
class PhotoPool:
    """All photos in a folder, by class and side; pools are equal only if they are the same object.

    Attributes:
        root: The folder.
        class_names: Names of the class folders, ascending.
        train: Each class's train photos, ordered by path.
        test: Each class's test photos. None of those that `held_out.py` chose equals a train photo of its class; a
            folder's own split is used as it is.
        skipped: Files that are not usable photos, relative to `root`, by reason.
        notes: Lines for people about odd but usable photos.
    """

    root: Path
    class_names: tuple[str, ...]
    train: tuple[tuple[PoolPhoto, ...], ...]
    test: tuple[tuple[PoolPhoto, ...], ...]
    skipped: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()

    @classmethod
    def open(cls, root: Path) -> Self:
        """Read photos, and owners if there are any, from one of these layouts.

        - One folder per class; or `train` and `test` with one folder per class in each.
        - One folder per client, with one folder per class in each.
        - A table of files and clients (`table.py`): a CSV file, or a folder that holds it.

        Without a split, one photo in five is held out for tests (`held_out.py`).

        Raises:
            PoolUnusable: The folder is missing, mixes layouts, or has fewer than two classes or a class on one side
                only; or the table has an error.
        """
        table = table_of(root)
        root = root if table is None else table.parent
        if not root.is_dir():
            raise PoolUnusable(
                f"{root} is no folder and no table (.csv); give a folder that has a sub-folder of photos for each class"
            )
        listing = Listing(root)
        folders: list[Path] = []
        if table is not None:
            train, test = split(read_table(table, listing))
        elif (root / "train").is_dir() and (root / "test").is_dir():
            train, test = listing.classes(root / "train"), listing.classes(root / "test")
        elif folders := client_folders(root):
            train, test = split(read_clients(root, folders, listing))
        else:
            train, test = split(listing.classes(root))
        if one_sided := sorted(train.keys() ^ test.keys()):
            missing = "test" if one_sided[0] in train else "train"
            raise PoolUnusable(f"class {one_sided[0]!r} has no folder in {root / missing}; both sides need it")
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
            notes=notes_on(train, test, folders) if table is not None or folders else lacking(train, test),
        )

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """The owners of the photos, ascending; empty if unknown."""
        found = {photo.owner for side in (self.train, self.test) for members in side for photo in members}
        return tuple(sorted(found - {""}))

    @cached_property
    def train_entries(self) -> tuple[tuple[Photo, ...], ...]:
        """The album entries of each class's train photos, which all albums that hold them share."""
        return tuple(
            tuple(self.entry(label, photo, is_test=False) for photo in members)
            for label, members in enumerate(self.train)
        )

    def require(self, *, train: int, test: int, advice: str) -> None:
        """Check that every class has this many photos on each side.

        Raises:
            TooFewPhotos: A class has fewer; the text names the first one.
        """
        for side, needed, members in (("train", train, self.train), ("test", test, self.test)):
            for name, found in zip(self.class_names, members, strict=True):
                if len(found) < needed:
                    raise TooFewPhotos(
                        f"class {name!r} has {len(found)} {side} photos in {self.root}, at least {needed} are needed; "
                        f"{advice}"
                    )

    def entries(self, *, is_test: bool) -> tuple[Photo, ...]:
        """The album entries of all train or all test photos."""
        side = self.test if is_test else self.train
        return tuple(
            self.entry(label, photo, is_test=is_test) for label, members in enumerate(side) for photo in members
        )

    def entry(self, label: int, photo: PoolPhoto, *, is_test: bool) -> Photo:
        """The album entry of a photo of class `label`."""
        return Photo(photo.digest, photo.copy, self.class_names[label], photo.path, is_test)
