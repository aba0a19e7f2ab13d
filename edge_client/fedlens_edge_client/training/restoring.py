"""The short way to a downloaded set: from a blob that is here and a difference that is fetched.

What comes of it must have the digest that the assignment names, so a wrong way costs time and nothing else: the caller
then fetches the whole blob.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from fedlens_edge_client.errors import BadAnswer, Refused
from fedlens_edge_client.storage.cache import Cache, Fetch
from fedlens_proto import blob
from fedlens_proto.blob import Blob
from fedlens_proto.difference import Sums
from fedlens_proto.errors import BlobError
from fedlens_proto.keyed_hash import DIGEST_BYTES
from fedlens_proto.v1 import assignment_pb2


async def restore(
    cache: Cache, fetch: Fetch, entry: assignment_pb2.BlobSet, file: Path, fetched: Callable[[bytes, int], None]
) -> bool:
    """Write the blob of a set to `file` by way of its difference.

    Args:
        cache: Where its base may be, and the difference is put.
        fetch: As `Transport.fetch`.
        entry: A set with a difference.
        file: Its content is replaced; what is in it afterwards is not checked.
        fetched: Told the digest and size of the difference if it had to be fetched.

    Returns:
        Whether it was written. If not, the base is not here, or the difference does not come or fit; `file` is then as
        it was, or empty.

    Raises:
        StateError: There is no room.
        OSError: `file` cannot be written.
    """
    way = entry.difference
    # The blob itself, as its own difference, would be waited for until it is here.
    if way.size >= entry.size or way.sha256 == entry.sha256 or len(way.base) != DIGEST_BYTES:
        return False
    with ExitStack() as pinned:
        if not await cache.hold_present(way.base, pinned):
            return False
        try:
            if await cache.hold({way.sha256: way.size}, fetch, pinned):
                fetched(way.sha256, way.size)
            await asyncio.to_thread(_add, cache.path(way.base), cache.path(way.sha256), way, file)
        except (BadAnswer, Refused, BlobError):
            return False
    return True


def _add(base: Path, difference: Path, way: assignment_pb2.Difference, file: Path) -> None:
    held, found = Blob.open(base, way.base), Blob.open(difference, way.sha256)
    if found.layout.base != way.base:
        raise BlobError("the difference names another base than the assignment")
    try:
        with file.open("wb") as stream:
            blob.write(stream, Sums(held, found))
    except (BlobError, OSError):
        # A download would go on from what is there.
        os.truncate(file, 0)
        raise
