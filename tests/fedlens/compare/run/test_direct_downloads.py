"""Downloads of a study's clients: counted as a phone's, and in memory once."""

import gc
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens.compare.run.direct_downloads import DirectDownloads, SharedBlobs
from fedlens_edge_client.errors import BadResponse
from fedlens_edge_client.storage.restoring import restore
from fedlens_proto import blob
from fedlens_proto.blob import Array, Blob
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.v1 import assignment_pb2, blob_pb2
from fedlens_server.store import Location
from tests.integration import federation

BASE: dict[str, Array] = {"w": np.arange(1200, dtype=np.float32).reshape(4, 300)}
NEXT: dict[str, Array] = {"w": 2 * np.arange(1200, dtype=np.float32).reshape(4, 300)}
FIRST, SECOND = (blob.encode(each) for each in (BASE, NEXT))
ONE, TWO = sha256(FIRST).digest(), sha256(SECOND).digest()


async def fetch(digest: bytes, into: Path, max_bytes: int) -> None:
    raise AssertionError("what is in this process is not copied")


class Engine:
    """The round engine's side: some blobs, and what was counted as sent."""

    def __init__(self, *blobs: bytes) -> None:
        self._blobs = {sha256(raw).digest(): raw for raw in blobs}
        self.sent: list[bytes] = []

    def locate(self, digest: bytes, max_bytes: int) -> Location:
        self.sent.append(digest)
        raw = self._blobs[digest]
        return Location(len(raw), raw=raw)


async def test_each_client_is_counted_and_all_read_the_same_blob() -> None:
    engine, shared = Engine(FIRST), SharedBlobs([])
    clients = [DirectDownloads(engine.locate, shared, 1 << 20) for _ in range(3)]

    for client in clients * 2:
        await client.obtain(ONE, len(FIRST), fetch)

    assert engine.sent == [ONE] * 3
    assert len({id(client.blob(ONE)) for client in clients}) == 1
    np.testing.assert_array_equal(clients[0].blob(ONE)["w"], BASE["w"])


async def test_the_least_recently_used_goes_unless_it_is_held_and_leaves_memory_with_its_last_client() -> None:
    engine, shared = Engine(FIRST, SECOND), SharedBlobs([])
    client = DirectDownloads(engine.locate, shared, len(SECOND))
    with ExitStack() as held:
        await client.hold({ONE: len(FIRST)}, fetch, held)
        await client.obtain(TWO, len(SECOND), fetch)
        client.trim()
        assert await client.hold_present(ONE, held)
        assert not await client.hold_present(TWO, held)

    await client.obtain(TWO, len(SECOND), fetch)
    client.trim()
    gc.collect()

    assert engine.sent == [ONE, TWO, TWO]
    with pytest.raises(LookupError):
        shared.blob(ONE)


async def test_a_delta_counts_instead_of_the_blob() -> None:
    held = Blob.from_bytes(FIRST)
    delta = blob.encode(Differences(NEXT, held), floats=blob_pb2.DTYPE_INT8, base=ONE)
    whole = blob.encode(Sums(held, Blob.from_bytes(delta)))
    way = assignment_pb2.Difference(sha256=sha256(delta).digest(), size=len(delta), base=ONE)
    entry = assignment_pb2.BlobSet(name="global", sha256=sha256(whole).digest(), size=len(whole), difference=way)
    engine = Engine(FIRST, delta, whole)
    client = DirectDownloads(engine.locate, SharedBlobs([]), 1 << 20)
    shortcut = partial(restore, client, fetch, entry, fetched=lambda digest, size: None)
    await client.obtain(ONE, len(FIRST), fetch)

    fetched = await client.obtain(entry.sha256, entry.size, fetch, shortcut=shortcut)

    assert not fetched
    assert engine.sent == [ONE, way.sha256]
    assert client.blob(entry.sha256).raw == whole


async def test_parts_are_read_where_the_bundle_is(tmp_path: Path) -> None:
    bundle = federation.tiny_bundle(tmp_path)
    initial = bundle.manifest.initial
    engine = Engine(bundle.raw, bundle.part(initial).read_bytes())
    client = DirectDownloads(engine.locate, SharedBlobs([bundle]), 1 << 20)

    await client.obtain(bundle.id, 1 << 20, fetch, exact=False)
    await client.obtain(initial, bundle.part(initial).stat().st_size, fetch)

    assert client.bundle(bundle.id) is bundle
    assert client.blob(initial).raw == bundle.initial().raw


async def test_another_length_than_announced_is_refused() -> None:
    client = DirectDownloads(Engine(FIRST).locate, SharedBlobs([]), 1 << 20)

    with pytest.raises(BadResponse, match=f"{len(FIRST)} bytes; {len(FIRST) + 1} bytes were announced"):
        await client.obtain(ONE, len(FIRST) + 1, fetch)
