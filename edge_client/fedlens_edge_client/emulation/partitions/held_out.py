"""Held-out test photos of a folder without a split of its own: one in five, chosen by content.

Equal files of a class are on the same side; with owners, equal files of all classes are. The choice depends on the
photos and their owners' names alone.
"""

from collections import defaultdict
from hashlib import sha256

from fedlens_edge_client.emulation.partitions.listing import ByClass, PoolPhoto

ONE_IN = 5


def split(classes: ByClass) -> tuple[ByClass, ByClass]:
    """Split photos into train and test photos: within each class or, with owners, within each owner's photos."""
    owned = any(photo.owner for members in classes.values() for photo in members)
    held = _by_owner(classes) if owned else set[bytes]()
    train, test = {}, {}
    for name, members in classes.items():
        of_class = held if owned else _of_class(members)
        train[name] = tuple(photo for photo in members if photo.digest not in of_class)
        test[name] = tuple(photo for photo in members if photo.digest in of_class)
    return train, test


def _of_class(members: tuple[PoolPhoto, ...]) -> set[bytes]:
    """A fifth of a class: the photos with the smallest hashes, at least one."""
    digests = sorted({photo.digest for photo in members}, key=_hash)
    return set(digests[: -(-len(digests) // ONE_IN)])


def _by_owner(classes: ByClass) -> set[bytes]:
    """Every fifth photo of each owner, by class and hash; a photo held out for one owner is held out for all.

    The owner's name decides where to begin among the first five photos. So with many owners, some photo of every class
    is likely held out, even if an owner has one of each.
    """
    owned: dict[str, dict[bytes, str]] = defaultdict(dict)
    for name in sorted(classes):
        for photo in classes[name]:
            owned[photo.owner].setdefault(photo.digest, name)
    held: set[bytes] = set()
    for owner, found in owned.items():
        order = sorted(found, key=lambda digest: (found[digest], _hash(digest)))
        first = int.from_bytes(sha256(owner.encode()).digest()) % min(ONE_IN, len(order))
        held.update(order[first::ONE_IN])
    return held


def _hash(digest: bytes) -> bytes:
    return sha256(b"fedlens/held-out/v1" + digest).digest()
