"""What a client sends as int8 and as differences, and how it comes by a download without fetching all of it."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client import EdgeClient
from fedlens_edge_client.client.events import Downloaded, Event
from fedlens_edge_client.errors import BadAnswer, Refused
from fedlens_edge_client.storage.cache import Cache
from fedlens_edge_client.training.restoring import restore
from fedlens_proto import blob
from fedlens_proto.blob import Array, Blob
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, blob_pb2, update_pb2
from tests.edge_client.fakes import FakeServer, fedavg_plan
from tests.edge_client.linear import make_bundle

INT8 = blob_pb2.DTYPE_INT8
GENERATOR = np.random.default_rng(3)
BASE = {"w": GENERATOR.standard_normal((4, 300), np.float32), "b": np.zeros(4, np.float32)}
NEXT = {"w": BASE["w"] + GENERATOR.standard_normal((4, 300), np.float32) / 8, "b": np.ones(4, np.float32)}


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Weights of 2 x 192, so that int8 saves something."""
    return make_bundle(tmp_path_factory.mktemp("whole") / "bundle", frozen=False)


def difference_to(base: bytes, tensors: dict[str, Array]) -> tuple[bytes, bytes]:
    """An int8 difference, and the blob that base and difference make."""
    held = Blob.from_bytes(base)
    raw = blob.encode(Differences(tensors, held), floats=INT8, base=held.digest)
    return raw, blob.encode(Sums(held, Blob.from_bytes(raw)))


def digest(raw: bytes) -> bytes:
    return sha256(raw).digest()


@pytest.mark.parametrize(
    ("codec", "floats", "error"),
    [
        (assignment_pb2.CODEC_FLOAT32, blob_pb2.DTYPE_FLOAT32, 1e-6),
        (assignment_pb2.CODEC_FLOAT16, blob_pb2.DTYPE_FLOAT16, 1e-3),
        # Half of a row's largest change, in units of its scale: 1 / 254 = 0.4%.
        (assignment_pb2.CODEC_INT8, INT8, 4e-3),
    ],
)
@pytest.mark.parametrize("difference", [True, False])
async def test_a_client_sends_what_it_trained_in_the_codec_and_to_the_base_that_it_is_told(
    whole_model: Bundle,
    client_of: Callable[..., EdgeClient],
    tmp_path: Path,
    codec: assignment_pb2.Codec,
    floats: blob_pb2.Dtype,
    error: float,
    difference: bool,
) -> None:
    plan = fedavg_plan()
    async with FakeServer(whole_model, plan) as server, client_of(server.url) as client:
        await client.run()
        exact = Blob.from_bytes(server.blob(1))
    plan.upload.codec, plan.upload.base_set = codec, "global" if difference else ""

    async with (
        FakeServer(whole_model, plan) as server,
        client_of(server.url, state=tmp_path / "other", cache=tmp_path / "cache") as client,
    ):
        await client.run()
        sent = Blob.from_bytes(server.blob(1))

    initial = whole_model.initial()
    assert sent.layout.base == (initial.digest if difference else None)
    assert {spec.name: spec.dtype for spec in sent.layout.specs}["fc.weight"] == floats
    found = Sums(initial, sent) if difference else sent
    for name in exact:
        np.testing.assert_allclose(found[name], exact[name], atol=error * np.abs(exact[name]).max())


class DifferenceServer(FakeServer):
    """Offers the set `global` from round 2 on by a difference, too."""

    difference: assignment_pb2.Difference | None = None

    def offer(self, base: bytes, tensors: dict[str, Array]) -> bytes:
        """Have `global` be a blob close to these tensors; the difference by which clients can make it."""
        raw, restored = difference_to(base, tensors)
        self.put_set("global", restored)
        self.put_set("its-difference", raw)
        self.difference = assignment_pb2.Difference(sha256=digest(raw), size=len(raw), base=digest(base))
        return raw

    def assignment(self) -> assignment_pb2.Assignment:
        given = super().assignment()
        for entry in given.sets:
            if entry.name == "global" and self.difference is not None:
                entry.difference.CopyFrom(self.difference)
        return given


async def test_a_client_that_has_the_base_fetches_the_difference_alone(
    whole_model: Bundle, client_of: Callable[..., EdgeClient], events: list[Event]
) -> None:
    plan = fedavg_plan()
    plan.upload.tensors.names.append("fc.weight")  # the fake server then keeps `global` as it is
    first = whole_model.initial().raw.tobytes()
    moved: dict[str, Array] = {name: value + np.float32(0.25) for name, value in whole_model.initial().items()}
    async with DifferenceServer(whole_model, plan, rounds=2) as server, client_of(server.url) as client:
        await client.run_once()
        raw = server.offer(first, moved)
        before = len(events)
        await client.run_once()

    fetched = {event.sha256 for event in events[before:] if isinstance(event, Downloaded)}
    assert fetched == {digest(raw)}
    assert list(server.updates) == [1, 2]


class Source:
    """Where blobs are fetched from; a digest that it does not have is refused."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {digest(raw): raw for raw in contents}
        self.asked: list[bytes] = []

    async def fetch(self, wanted: bytes, into: Path, max_bytes: int) -> None:
        self.asked.append(wanted)
        if wanted not in self.contents:
            raise Refused("unknown", "no such blob")
        with into.open("wb") as file:
            file.write(self.contents[wanted])


async def hold(cache: Cache, source: Source, entry: assignment_pb2.BlobSet) -> list[bytes]:
    """What was fetched so that the set is in the cache."""
    told: list[bytes] = []
    with ExitStack() as stack:
        fetched = await cache.hold(
            {entry.sha256: entry.size},
            source.fetch,
            stack,
            {entry.sha256: lambda file: restore(cache, source.fetch, entry, file, lambda name, _: told.append(name))},
        )
    assert digest(cache.path(entry.sha256).read_bytes()) == entry.sha256
    return [*told, *fetched]


def offered(restored: bytes, difference: bytes, base: bytes) -> assignment_pb2.BlobSet:
    way = assignment_pb2.Difference(sha256=digest(difference), size=len(difference), base=digest(base))
    return assignment_pb2.BlobSet(name="global", sha256=digest(restored), size=len(restored), difference=way)


@pytest.fixture
async def cache(tmp_path: Path) -> Cache:
    """With the base in it."""
    made, base = Cache(tmp_path, 1 << 20), blob.encode(BASE)
    await made.obtain(digest(base), len(base), Source(base).fetch)
    return made


async def test_base_and_difference_make_the_blob(cache: Cache) -> None:
    base = blob.encode(BASE)
    raw, restored = difference_to(base, NEXT)

    assert await hold(cache, Source(raw), offered(restored, raw, base)) == [digest(raw)]
    assert await hold(cache, Source(), offered(restored, raw, base)) == []


async def test_without_the_base_the_whole_is_fetched_and_nothing_else(tmp_path: Path) -> None:
    base = blob.encode(BASE)
    raw, restored = difference_to(base, NEXT)
    source = Source(raw, restored)

    await hold(Cache(tmp_path, 1 << 20), source, offered(restored, raw, base))

    assert source.asked == [digest(restored)]


def other_base() -> bytes:
    """A difference to something else, with the right digest of its own."""
    return difference_to(blob.encode({**BASE, "b": np.full(4, 7, np.float32)}), NEXT)[0]


def other_shape() -> bytes:
    return blob.encode({"w": np.ones((4, 299), np.float32)}, floats=INT8, base=digest(blob.encode(BASE)))


def other_values() -> bytes:
    return difference_to(blob.encode(BASE), {**NEXT, "b": np.zeros(4, np.float32)})[0]


@pytest.mark.parametrize("make", [other_base, other_shape, other_values, lambda: b"no blob", lambda: b""])
async def test_a_difference_that_leads_elsewhere_costs_a_whole_download_and_no_more(
    cache: Cache, make: Callable[[], bytes]
) -> None:
    base = blob.encode(BASE)
    _, restored = difference_to(base, NEXT)

    assert (await hold(cache, Source(make(), restored), offered(restored, make(), base)))[-1] == digest(restored)


async def test_a_download_does_not_go_on_from_a_sum_that_was_given_up_half_way(cache: Cache) -> None:
    # `b` comes first and is 20 kB long; `w` then is 2 * 2e38, above the largest float32 of 3.4e38.
    tensors: dict[str, Array] = {"b": np.ones(5000, np.float32), "w": np.full((1, 4), 2e38, np.float32)}
    base, whole = blob.encode(tensors), blob.encode({"b": tensors["b"]})
    way = blob.encode(tensors, base=digest(base))
    await cache.obtain(digest(base), len(base), Source(base).fetch)
    source, found = Source(way, whole), list[int]()

    async def fetch(wanted: bytes, into: Path, max_bytes: int) -> None:
        found.append((await asyncio.to_thread(into.stat)).st_size)
        await source.fetch(wanted, into, max_bytes)

    entry = offered(whole, way, base)
    entry.size = entry.difference.size + 1
    with ExitStack() as stack, pytest.raises(BadAnswer):
        await cache.hold(
            {entry.sha256: entry.size},
            fetch,
            stack,
            {entry.sha256: lambda file: restore(cache, fetch, entry, file, lambda name, size: None)},
        )

    # The difference, then the whole: in both cases from the first byte.
    assert found[:2] == [0, 0]


async def test_a_set_that_holds_a_difference_is_not_taken_for_weights(
    whole_model: Bundle, client_of: Callable[..., EdgeClient]
) -> None:
    initial = whole_model.initial()
    async with FakeServer(whole_model, fedavg_plan()) as server, client_of(server.url) as client:
        server.put_set("global", blob.encode(dict(initial), base=initial.digest))
        await client.run_once()

    assert server.failures[1].reason == update_pb2.FAILURE_REASON_UNSUPPORTED
    assert server.failures[1].detail == (
        f"set 'global' holds the difference to blob {initial.digest.hex()}; a set must hold whole weights"
    )


async def test_a_difference_that_the_server_does_not_give_costs_nothing(cache: Cache) -> None:
    base = blob.encode(BASE)
    raw, restored = difference_to(base, NEXT)

    assert await hold(cache, Source(restored), offered(restored, raw, base)) == [digest(restored)]


async def test_a_damaged_base_is_noticed(cache: Cache, tmp_path: Path) -> None:
    base = blob.encode(BASE)
    raw, restored = difference_to(base, NEXT)
    damaged = bytearray(base)
    damaged[-1] ^= 1
    cache.path(digest(base)).write_bytes(damaged)

    fetched = await hold(Cache(tmp_path, 1 << 20), Source(raw, restored), offered(restored, raw, base))

    assert fetched == [digest(restored)]


async def test_a_difference_no_shorter_than_the_whole_is_not_fetched(cache: Cache) -> None:
    base = blob.encode(BASE)
    raw, restored = difference_to(base, NEXT)
    entry = offered(restored, raw, base)
    entry.difference.size = len(restored)

    assert await hold(cache, Source(raw, restored), entry) == [digest(restored)]


@pytest.mark.parametrize(
    "named",
    [
        lambda way, whole: setattr(way, "base", b""),
        lambda way, whole: setattr(way, "base", bytes(200)),
        lambda way, whole: setattr(way, "sha256", digest(whole)),
        lambda way, whole: setattr(way, "sha256", b""),
    ],
)
async def test_a_difference_that_is_named_wrongly_is_not_taken(
    cache: Cache, named: Callable[[assignment_pb2.Difference, bytes], None]
) -> None:
    base = blob.encode(BASE)
    raw, restored = difference_to(base, NEXT)
    entry = offered(restored, raw, base)
    named(entry.difference, restored)

    async with asyncio.timeout(10):
        assert await hold(cache, Source(raw, restored), entry) == [digest(restored)]
