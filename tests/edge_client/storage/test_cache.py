import asyncio
import fcntl
import os
import sqlite3
from contextlib import ExitStack, closing
from hashlib import sha256
from pathlib import Path

import pytest

from fedlens_edge_client.errors import BadResponse, Refused, StateError
from fedlens_edge_client.storage import feature_cache
from fedlens_edge_client.storage.cache import Cache
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.training import features
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.edge_client.fakes import BlobSource
from tests.edge_client.linear import make_bundle

ABC = sha256(b"abc").digest()
ABCDEF = sha256(b"abcdef").digest()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path, 1000)


def begun(cache: Cache) -> list[bytes]:
    """The contents of all partial downloads."""
    return [file.read_bytes() for file in (cache.folder / "incoming").iterdir()]


async def test_what_is_there_is_not_fetched_again(cache: Cache, tmp_path: Path) -> None:
    source = BlobSource(b"abc")
    first = await cache.obtain(ABC, 3, source.fetch)
    second = await Cache(tmp_path, 1000).obtain(ABC, 3, source.fetch)

    assert (first, second, len(source.asked)) == (True, False, 1)
    assert cache.path(ABC).read_bytes() == b"abc"


async def test_clients_that_need_a_blob_at_the_same_time_fetch_it_once(tmp_path: Path) -> None:
    source = BlobSource(b"abc")
    caches = [Cache(tmp_path, 1000) for _ in range(3)]

    fetched = await asyncio.gather(*(cache.obtain(ABC, 3, source.fetch) for cache in caches))

    assert (fetched, len(source.asked)) == ([True, False, False], 1)


@pytest.mark.parametrize("name", [b"", b"short", bytes(500)])
async def test_a_name_that_is_no_digest_is_refused(tmp_path: Path, name: bytes) -> None:
    with pytest.raises(BadResponse, match=f"named by {len(name)} bytes"):
        await Cache(tmp_path, 1000).obtain(name, 3, BlobSource().fetch)


async def test_a_folder_that_has_become_unusable_is_named(cache: Cache) -> None:
    source = BlobSource(b"abc")
    (cache.folder / "incoming").rmdir()

    with pytest.raises(StateError, match=r"cache folder .* cannot be used"):
        await cache.obtain(ABC, 3, source.fetch)


async def test_a_page_instead_of_a_blob_leaves_the_beginning(cache: Cache) -> None:
    async def fetch(digest: bytes, into: Path, max_bytes: int) -> None:
        raise BadResponse("<html>pay first")

    (cache.folder / "incoming" / ABCDEF.hex()).write_bytes(b"abc")
    with pytest.raises(BadResponse, match="pay first"):
        await cache.obtain(ABCDEF, 6, fetch)

    assert begun(cache) == [b"abc"]


async def test_wrong_bytes_twice_are_an_error_and_leave_nothing(cache: Cache) -> None:
    source = BlobSource(b"abc", wrong=2)
    with pytest.raises(BadResponse, match="digest"):
        await cache.obtain(ABC, 3, source.fetch)

    assert not cache.has(ABC)
    assert begun(cache) == []


async def test_a_file_that_was_damaged_on_the_disk_is_fetched_again(cache: Cache, tmp_path: Path) -> None:
    source = BlobSource(b"abc")
    await cache.obtain(ABC, 3, source.fetch)
    cache.path(ABC).write_bytes(b"abX")
    later = Cache(tmp_path, 1000)
    await later.obtain(ABC, 3, source.fetch)

    assert later.path(ABC).read_bytes() == b"abc"


async def test_while_another_process_writes_a_second_copy_is_fetched(cache: Cache) -> None:
    source = BlobSource(b"abc")
    other = os.open(cache.folder / "incoming" / ABC.hex(), os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    await cache.obtain(ABC, 3, source.fetch)
    os.close(other)

    assert cache.path(ABC).read_bytes() == b"abc"


async def test_the_least_recently_used_files_go_first_but_none_that_is_in_use(tmp_path: Path) -> None:
    contents = [bytes([n]) * 100 for n in range(4)]
    source, digests = BlobSource(*contents), [sha256(raw).digest() for raw in contents]
    cache = Cache(tmp_path, 250)
    with ExitStack() as pins:
        await cache.hold({digests[0]: 100}, source.fetch, pins)
        for age, digest in enumerate(digests[1:]):
            await cache.obtain(digest, 100, source.fetch)
            os.utime(cache.path(digest), (1000 + age, 1000 + age))
        os.utime(cache.path(digests[0]), (1, 1))
        cache.trim()

    # 400 bytes are there and 250 allowed: two go, the oldest but for the first one, which is held.
    assert [cache.path(digest).exists() for digest in digests] == [True, False, False, True]


async def test_what_was_held_can_go_afterwards(tmp_path: Path) -> None:
    source = BlobSource(b"abc")
    cache = Cache(tmp_path, 1)
    with ExitStack() as pins:
        assert await cache.hold({ABC: 3}, source.fetch, pins) == [ABC]
        cache.trim()
        assert cache.has(ABC)
    cache.trim()

    assert not cache.has(ABC)


async def test_a_round_of_several_models_fetches_four_at_a_time(tmp_path: Path) -> None:
    contents = [bytes([n]) * 100 for n in range(6)]
    source, digests = BlobSource(*contents), [sha256(raw).digest() for raw in contents]
    waiting, four = [0], asyncio.Event()

    async def fetch(digest: bytes, into: Path, max_bytes: int) -> None:
        waiting[0] += 1
        assert waiting[0] <= 4
        if waiting[0] == 4:
            four.set()
        await four.wait()  # without four at the same time nothing arrives
        await source.fetch(digest, into, max_bytes)
        waiting[0] -= 1

    with ExitStack() as pins:
        fetched = await Cache(tmp_path, 1000).hold(dict.fromkeys(digests, 100), fetch, pins)

    assert fetched == digests


async def test_one_download_that_is_refused_ends_the_others(tmp_path: Path) -> None:
    ended: list[bytes] = []

    async def fetch(digest: bytes, into: Path, max_bytes: int) -> None:
        if digest == ABC:
            raise Refused("unknown", "no such blob")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(digest)

    with ExitStack() as pins, pytest.raises(Refused, match="no such blob"):
        await Cache(tmp_path, 1000).hold({ABCDEF: 6, ABC: 3}, fetch, pins)

    assert ended == [ABCDEF]


def test_features_are_found_by_space_and_photo(tmp_path: Path) -> None:
    with closing(FeatureCache(tmp_path / "f", 1 << 20)) as cache:
        cache.put(b"space", {b"a": b"1", b"b": b"2"})

        assert cache.get(b"space", [b"a", b"c"]) == {b"a": b"1"}
        assert cache.get(b"other", [b"a"]) == {}


def test_a_damaged_feature_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"no database" * 1000)
    with closing(FeatureCache(tmp_path / "f", 1 << 20)) as cache:
        cache.put(b"s", {b"a": b"1"})

        assert cache.get(b"s", [b"a"]) == {b"a": b"1"}


def test_a_feature_file_that_somebody_is_just_making_is_waited_for_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQLite says so, without waiting, when two processes turn a new file to its journal at the same moment.
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    really, refusals = feature_cache._connect, [busy]

    def connect(path: Path) -> sqlite3.Connection:
        if refusals:
            raise refusals.pop()
        return really(path)

    with closing(FeatureCache(tmp_path / "f", 1 << 20)) as theirs:
        theirs.put(b"s", {b"a": b"1"})
        monkeypatch.setattr(feature_cache, "_connect", connect)
        with closing(FeatureCache(tmp_path / "f", 1 << 20)) as cache:
            assert cache.get(b"s", [b"a"]) == {b"a": b"1"}


def test_a_feature_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()

    with pytest.raises(StateError, match=r"feature cache .*f cannot be opened"):
        FeatureCache(tmp_path / "f", 1 << 20)


def test_features_beyond_the_limit_go_oldest_use_first(tmp_path: Path) -> None:
    with closing(FeatureCache(tmp_path / "f", 200_000)) as cache:
        for name in (b"a", b"b", b"c"):
            cache.put(b"s", {name: bytes(60_000)})
        with closing(sqlite3.connect(tmp_path / "f")) as database, database:
            database.execute("UPDATE feature SET used_day = 1 WHERE photo = ?", (b"b",))
            database.execute("UPDATE feature SET used_day = 2 WHERE photo = ?", (b"a",))
        assert set(cache.get(b"s", [b"a"])) == {b"a"}
        cache.put(b"s", {b"d": bytes(60_000)})

        assert set(cache.get(b"s", [b"a", b"b", b"c", b"d"])) == {b"a", b"c", b"d"}


def test_the_space_of_features_follows_backbone_and_size_but_not_the_head(tmp_path: Path) -> None:
    one = make_bundle(tmp_path / "one").manifest
    other_head = make_bundle(tmp_path / "two", with_reference=True).manifest
    other_weights = make_bundle(tmp_path / "three").manifest
    other_weights.frozen = bytes(32)
    other_size = make_bundle(tmp_path / "four").manifest
    other_size.preprocessing.height = 9

    pt2 = pb.PROGRAM_FORMAT_PT2
    assert features.space(one, pt2) == features.space(other_head, pt2)
    assert len({features.space(m, pt2) for m in (one, other_weights, other_size)}) == 3


# The server has to send nothing, once what lacks, or everything: at once or after an attempt with what is there.
@pytest.mark.parametrize(
    ("there", "calls"),
    [(b"abc", 1), (b"abcdef", 0), (b"abcdeX", 1), (b"abcdefg", 1), (b"xyz", 2)],
)
async def test_a_download_goes_on_from_what_is_there_unless_it_is_damaged(
    cache: Cache, there: bytes, calls: int
) -> None:
    source = BlobSource(b"abcdef")
    (cache.folder / "incoming" / ABCDEF.hex()).write_bytes(there)
    fetched = await cache.obtain(ABCDEF, 6, source.fetch)

    assert (fetched, len(source.asked)) == (calls > 0, calls)
    assert cache.path(ABCDEF).read_bytes() == b"abcdef"
    assert begun(cache) == []
