"""Delta downloads: reconstruct a set from a cached base and a delta that is fetched.

The caller checks the digest of the result and otherwise fetches the whole blob, so a wrong delta costs only time.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from fedlens_edge_client.errors import BadResponse, Refused
from fedlens_edge_client.storage.cache import Downloads, Fetch
from fedlens_proto import blob
from fedlens_proto.blob import Blob
from fedlens_proto.difference import Sums
from fedlens_proto.errors import BlobError
from fedlens_proto.keyed_hash import DIGEST_BYTES
from fedlens_proto.v1 import assignment_pb2


async def restore(
    cache: Downloads, fetch: Fetch, entry: assignment_pb2.BlobSet, file: Path, fetched: Callable[[bytes, int], None]
) -> bool:
    """Write the blob of a set to `file` by means of its delta.

    Args:
        cache: May hold the base, and takes the delta.
        fetch: As `Transport.fetch`.
        entry: A set with a delta.
        file: Its content is replaced and not checked.
        fetched: Called with the digest and size of the delta if it was fetched.

    Returns:
        Whether the blob was written. Otherwise the base is missing, or the delta is missing or does not fit; `file` is
        unchanged or empty.

    Raises:
        StateError: The disk is full.
        OSError: `file` cannot be written.
    """
    delta = entry.difference
    # A blob that is its own delta would wait for itself.
    if delta.size >= entry.size or delta.sha256 == entry.sha256 or len(delta.base) != DIGEST_BYTES:
        return False
    with ExitStack() as pinned:
        if not await cache.hold_present(delta.base, pinned):
            return False
        try:
            if await cache.hold({delta.sha256: delta.size}, fetch, pinned):
                fetched(delta.sha256, delta.size)
            await asyncio.to_thread(_add, cache.blob(delta.base), cache.blob(delta.sha256), delta, file)
        except (BadResponse, Refused, BlobError):
            return False
    return True


def _add(held: Blob, found: Blob, delta: assignment_pb2.Difference, file: Path) -> None:
    if found.layout.base != delta.base:
        raise BlobError("the delta and the assignment name different bases")
    try:
        with file.open("wb") as stream:
            blob.write(stream, Sums(held, found))
    except (BlobError, OSError):
        # A later download would resume from the partial content.
        os.truncate(file, 0)
        raise
