"""Which photos are for tests where a folder has no split of its own: one in five, by their contents.

Equal files of a class are on one side, and where photos have owners, equal files of all classes. Nothing but the photos
and their owners' names decides.
"""

from collections import defaultdict
from hashlib import sha256

from fedlens_edge_client.emulation.partitions.listing import ByClass, PoolPhoto

ONE_IN = 5


def split(classes: ByClass) -> tuple[ByClass, ByClass]:
    """Train and test photos: by class, or by owner where photos have owners."""
    owned = any(photo.owner for members in classes.values() for photo in members)
    held = _by_owner(classes) if owned else set[bytes]()
    train, test = {}, {}
    for name, members in classes.items():
        of_class = held if owned else _of_class(members)
        train[name] = tuple(photo for photo in members if photo.digest not in of_class)
        test[name] = tuple(photo for photo in members if photo.digest in of_class)
    return train, test


def _of_class(members: tuple[PoolPhoto, ...]) -> set[bytes]:
    """Of one class those with the smallest hashes, at least one."""
    digests = sorted({photo.digest for photo in members}, key=_hash)
    return set(digests[: -(-len(digests) // ONE_IN)])


def _by_owner(classes: ByClass) -> set[bytes]:
    """Of every owner each fifth, by class and hash; what is held out of one owner's photos is held out of all.

    The owner's name says which of the first five is the first: with many owners some photo of every class is likely to
    be held out, though an owner may have one of each.
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
