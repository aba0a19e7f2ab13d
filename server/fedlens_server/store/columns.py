"""JSON columns: sets of blobs, and digests by name."""

import json
from collections.abc import Callable, Mapping

from fedlens_proto.v1 import assignment_pb2

BlobSets = tuple[assignment_pb2.BlobSet, ...]


def sets_to_json(sets: BlobSets) -> str:
    """Sets for the database: by name the digest; with a difference a list of digest, difference and base."""
    return json.dumps(
        {
            item.name: [item.sha256.hex(), item.difference.sha256.hex(), item.difference.base.hex()]
            if item.HasField("difference")
            else item.sha256.hex()
            for item in sets
        },
        sort_keys=True,
    )


def sets_from_json(text: str, size: Callable[[bytes], int]) -> BlobSets:
    """The sets that `sets_to_json` wrote; `size` gives the bytes of each blob by digest."""
    sets = []
    for name, written in json.loads(text).items():
        digest, *difference = [bytes.fromhex(each) for each in ([written] if isinstance(written, str) else written)]
        found = assignment_pb2.BlobSet(name=name, sha256=digest, size=size(digest))
        if difference:
            found.difference.sha256, found.difference.base = difference
            found.difference.size = size(difference[0])
        sets.append(found)
    return tuple(sets)


def digests_to_json(digests: Mapping[str, bytes]) -> str:
    """Digests by name for the database, in their order."""
    return json.dumps({name: digest.hex() for name, digest in digests.items()})


def digests_from_json(text: str) -> dict[str, bytes]:
    """The digests that `digests_to_json` wrote."""
    return {name: bytes.fromhex(digest) for name, digest in json.loads(text).items()}
