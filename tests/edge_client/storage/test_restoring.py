"""Delta downloads: a cached base and a delta give the blob, and any other delta costs one whole download."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client.errors import BadResponse
from fedlens_edge_client.storage.cache import Cache, Fetch
from fedlens_edge_client.storage.restoring import restore
from fedlens_proto import blob
from fedlens_proto.blob import Array, Blob
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.v1 import assignment_pb2, blob_pb2
from tests.edge_client.fakes import BlobSource

INT8 = blob_pb2.DTYPE_INT8
GENERATOR = np.random.default_rng(3)
BASE: dict[str, Array] = {"w": GENERATOR.standard_normal((4, 300), np.float32), "b": np.zeros(4, np.float32)}
NEXT: dict[str, Array] = {
    "w": BASE["w"] + GENERATOR.standard_normal((4, 300), np.float32) / 8,
    "b": np.ones(4, np.float32),
}


def delta_to(base: bytes, tensors: dict[str, Array]) -> tuple[bytes, bytes]:
    """An int8 delta, and the blob that base and delta make."""
    held = Blob.from_bytes(base)
    raw = blob.encode(Differences(tensors, held), floats=INT8, base=held.digest)
    return raw, blob.encode(Sums(held, Blob.from_bytes(raw)))


def digest(raw: bytes) -> bytes:
    return sha256(raw).digest()


WHOLE = blob.encode(BASE)
DELTA, RESTORED = delta_to(WHOLE, NEXT)


async def hold(cache: Cache, fetch: Fetch, entry: assignment_pb2.BlobSet) -> list[bytes]:
    """The digests that were fetched so that the set is in the cache."""
    told: list[bytes] = []
    with ExitStack() as stack:
        fetched = await cache.hold(
            {entry.sha256: entry.size},
            fetch,
            stack,
            {entry.sha256: lambda file: restore(cache, fetch, entry, file, lambda name, _: told.append(name))},
        )
    assert digest(cache.path(entry.sha256).read_bytes()) == entry.sha256
    return [*told, *fetched]


def offered(restored: bytes = RESTORED, delta: bytes = DELTA, base: bytes = WHOLE) -> assignment_pb2.BlobSet:
    way = assignment_pb2.Difference(sha256=digest(delta), size=len(delta), base=digest(base))
    return assignment_pb2.BlobSet(name="global", sha256=digest(restored), size=len(restored), difference=way)


@pytest.fixture
async def cache(tmp_path: Path) -> Cache:
    """With the base in it."""
    made = Cache(tmp_path, 1 << 20)
    await made.obtain(digest(WHOLE), len(WHOLE), BlobSource(WHOLE).fetch)
    return made


async def test_base_and_delta_make_the_blob(cache: Cache) -> None:
    assert await hold(cache, BlobSource(DELTA).fetch, offered()) == [digest(DELTA)]
    assert await hold(cache, BlobSource().fetch, offered()) == []


async def test_without_the_base_the_whole_is_fetched_and_nothing_else(tmp_path: Path) -> None:
    source = BlobSource(DELTA, RESTORED)

    await hold(Cache(tmp_path, 1 << 20), source.fetch, offered())

    assert source.asked == [digest(RESTORED)]


def other_base() -> bytes:
    """A delta to something else, with the right digest of its own."""
    return delta_to(blob.encode({**BASE, "b": np.full(4, 7, np.float32)}), NEXT)[0]


def other_shape() -> bytes:
    return blob.encode({"w": np.ones((4, 299), np.float32)}, floats=INT8, base=digest(WHOLE))


def other_values() -> bytes:
    return delta_to(WHOLE, {**NEXT, "b": np.zeros(4, np.float32)})[0]


@pytest.mark.parametrize("make", [other_base, other_shape, other_values, lambda: b"no blob", lambda: b""])
async def test_a_delta_that_leads_elsewhere_costs_a_whole_download_and_no_more(
    cache: Cache, make: Callable[[], bytes]
) -> None:
    fetched = await hold(cache, BlobSource(make(), RESTORED).fetch, offered(delta=make()))

    assert fetched[-1] == digest(RESTORED)


async def test_a_download_does_not_go_on_from_a_sum_that_was_given_up_half_way(cache: Cache) -> None:
    # `b` comes first and is 20 kB long; `w` then is 2 * 2e38, above the largest float32 of 3.4e38.
    tensors: dict[str, Array] = {"b": np.ones(5000, np.float32), "w": np.full((1, 4), 2e38, np.float32)}
    base, whole = blob.encode(tensors), blob.encode({"b": tensors["b"]})
    delta = blob.encode(tensors, base=digest(base))
    await cache.obtain(digest(base), len(base), BlobSource(base).fetch)
    source, found = BlobSource(delta, whole), list[int]()

    async def fetch(wanted: bytes, into: Path, max_bytes: int) -> None:
        found.append((await asyncio.to_thread(into.stat)).st_size)
        await source.fetch(wanted, into, max_bytes)

    entry = offered(whole, delta, base)
    entry.size = entry.difference.size + 1
    with pytest.raises(BadResponse):
        await hold(cache, fetch, entry)

    # The delta, then the whole: in both cases from the first byte.
    assert found[:2] == [0, 0]


async def test_a_delta_that_the_server_does_not_give_costs_nothing(cache: Cache) -> None:
    assert await hold(cache, BlobSource(RESTORED).fetch, offered()) == [digest(RESTORED)]


async def test_a_damaged_base_is_noticed(cache: Cache, tmp_path: Path) -> None:
    cache.path(digest(WHOLE)).write_bytes(WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]))

    fetched = await hold(Cache(tmp_path, 1 << 20), BlobSource(DELTA, RESTORED).fetch, offered())

    assert fetched == [digest(RESTORED)]


def no_shorter(way: assignment_pb2.Difference) -> None:
    way.size = len(RESTORED)


@pytest.mark.parametrize(
    "change",
    [
        no_shorter,
        lambda way: setattr(way, "base", b""),
        lambda way: setattr(way, "base", bytes(200)),
        lambda way: setattr(way, "sha256", digest(RESTORED)),
        lambda way: setattr(way, "sha256", b""),
    ],
)
async def test_a_delta_that_is_named_wrongly_or_is_no_shorter_is_not_taken(
    cache: Cache, change: Callable[[assignment_pb2.Difference], None]
) -> None:
    entry = offered()
    change(entry.difference)

    async with asyncio.timeout(10):
        assert await hold(cache, BlobSource(DELTA, RESTORED).fetch, entry) == [digest(RESTORED)]
