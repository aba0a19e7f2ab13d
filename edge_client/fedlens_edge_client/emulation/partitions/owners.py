"""Owners of photos: folders `CLIENT/CLASS/photo`, and notes about owners and classes.

An *owner* is the person or device that took a photo; a fleet's client has the photos of one or several owners.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from fedlens_edge_client.emulation.partitions.listing import ByClass, Listing, PoolPhoto, PoolUnusable
from fedlens_edge_client.errors import abbreviated
from fedlens_proto import photos

_LOOSE = "photos outside the clients' folders"


def client_folders(root: Path) -> list[Path]:
    """The folders of clients in `root`, by name; empty if its sub-folders are class folders.

    Raises:
        PoolUnusable: `root` mixes class folders and client folders; or one side of a split is missing.
    """
    folders = photos.class_folders(root)
    classes = [folder for folder in folders if _holds_photos(folder)]
    clients = [
        folder for folder in folders if folder not in classes and any(map(_holds_photos, photos.class_folders(folder)))
    ]
    if classes and clients:
        raise PoolUnusable(
            f"{root} holds folders of photos ({_named(classes)}) beside folders of class folders ({_named(clients)}); "
            "move photos so that all are CLASS/photo, or all are CLIENT/CLASS/photo"
        )
    if side := next((folder.name for folder in clients if folder.name in ("train", "test")), None):
        other = "test" if side == "train" else "train"
        raise PoolUnusable(f"{root} has a folder {side!r} and none {other!r}; add it, or give {root / side} alone")
    # An empty folder beside clients is a client without photos, which a note names.
    return folders if clients else []


def read_clients(root: Path, folders: list[Path], listing: Listing) -> ByClass:
    """The photos of all clients; a class has the photos of all class folders of its name."""
    if loose := photos.list_photos(root).photos:
        listing.skip(_LOOSE, *loose)
    found: dict[str, list[PoolPhoto]] = defaultdict(list)
    for folder in folders:
        for name, members in listing.classes(folder, folder.name).items():
            found[name].extend(members)
    return {name: tuple(members) for name, members in found.items()}


def notes_on(train: ByClass, test: ByClass, folders: list[Path]) -> tuple[str, ...]:
    """Lines for people about odd but usable photos.

    Args:
        train: Photos with owners.
        test: Photos of the same classes.
        folders: Clients' folders, if there are any.

    Raises:
        PoolUnusable: A class has no train photo.
    """
    owners: set[str] = set()
    alone: dict[str, list[str]] = defaultdict(list)
    for name, members in train.items():
        if not members:
            raise PoolUnusable(
                f"class {name!r} has no photo to train on and {len(test[name])} to test with; add photos of it, or "
                "leave the class out"
            )
        having = {photo.owner for photo in (*members, *test[name])}
        owners |= having
        if len(having) == 1:
            alone[having.pop()].append(name)
    notes = []
    if empty := [folder for folder in folders if folder.name not in owners]:
        notes.append(f"folders without a photo that could be read are no clients: {_named(empty)}")
    if len(owners) == 1:
        notes.append(f"all photos are of one client ({owners.pop()}): there is no other to learn with")
    else:
        notes.extend(
            f"only client {owner!r} has photos of class {', '.join(map(repr, names))}: no other learns or is tested "
            "on it; add photos of it to others, or leave it out"
            for owner, names in sorted(alone.items())
        )
    return (*notes, *lacking(train, test))


def lacking(train: ByClass, test: ByClass) -> tuple[str, ...]:
    """Lines for people about classes without photos on a side."""
    sides = (("train", train, "nobody learns it"), ("test", test, "results say nothing of it"))
    return tuple(
        f"no {side} photo of class {', '.join(map(repr, names))}: {effect}; add photos"
        for side, classes, effect in sides
        if (names := [name for name, members in classes.items() if not members])
    )


def _holds_photos(folder: Path) -> bool:
    found = photos.list_photos(folder)
    return bool(found.photos) or photos.Skipped.HEIC in found.skipped


def _named(folders: Iterable[Path]) -> str:
    return abbreviated([folder.name for folder in folders], 5)
