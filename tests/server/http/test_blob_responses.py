"""Fetching blobs: whole and in ranges, from the database and from files."""

from hashlib import sha256

import pytest

from tests.server.bundles import tiny_bundle
from tests.server.http.running import Client, Server, trained, update

SMALL, LARGE = 3, 40_000  # features: a blob in the database, a blob in a file


async def member(server: Server, features: int) -> tuple[Client, str, bytes]:
    bundle = tiny_bundle(features)
    await server.create(bundle, population=1)
    client = await server.client(1)
    return client, f"/v1/blobs/{sha256(bundle.initial).hexdigest()}", bundle.initial


@pytest.mark.parametrize("features", [SMALL, LARGE])
async def test_a_member_fetches_its_model(server: Server, features: int) -> None:
    client, path, content = await member(server, features)

    answer = await client.send("GET", path)

    assert (answer.status, answer.body) == (200, content)
    assert answer.headers["Cache-Control"] == "private, immutable"
    assert answer.headers["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize("features", [SMALL, LARGE])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [("bytes=0-9", slice(0, 10)), ("bytes=100-", slice(100, None)), ("bytes=-7", slice(-7, None))],
)
async def test_a_member_fetches_a_range(server: Server, features: int, asked: str, expected: slice) -> None:
    client, path, content = await member(server, features)

    answer = await client.send("GET", path, Range=asked)

    first, last, _ = expected.indices(len(content))
    assert (answer.status, answer.body) == (206, content[expected])
    assert answer.headers["Content-Range"] == f"bytes {first}-{last - 1}/{len(content)}"


@pytest.mark.parametrize("features", [SMALL, LARGE])
@pytest.mark.parametrize("asked", ["bytes=9999999-", "bytes=5-2", "bytes=x", "lines=1-2", "bytes=0-1,3-4"])
async def test_a_range_that_cannot_be_served_is_416(server: Server, features: int, asked: str) -> None:
    client, path, content = await member(server, features)

    answer = await client.send("GET", path, Range=asked)

    assert answer.outcome == (416, "wrong-range")
    assert answer.headers["Content-Range"] == f"bytes */{len(content)}"


async def test_a_blob_that_is_deleted_while_it_is_asked_for_is_unknown(server: Server) -> None:
    client, path, content = await member(server, LARGE)
    server.service.store.blobs.path(sha256(content).digest()).unlink()

    answer = await client.send("GET", path)

    assert answer.outcome == (404, "unknown")
    assert "Cache-Control" not in answer.headers


async def test_every_part_of_the_bundle_is_there_for_who_can_run_it(server: Server) -> None:
    client, _, _ = await member(server, SMALL)
    bundle = tiny_bundle(SMALL)

    fetched = {digest: (await client.send("GET", f"/v1/blobs/{digest.hex()}")).body for digest in bundle.by_digest}
    manifest = await client.send("GET", f"/v1/blobs/{bundle.id.hex()}")

    assert fetched == bundle.by_digest
    assert manifest.body == bundle.manifest


async def test_what_members_fetch_is_counted(server: Server) -> None:
    client, path, content = await member(server, SMALL)

    assignment = await client.assignment()
    await client.send("GET", path)
    await client.send("GET", path, Range="bytes=0-9")
    await client.send("HEAD", path)
    await client.upload(assignment, update(assignment, trained()))
    await client.check_in(hold_ms=10_000)

    assert (await server.show()).rounds[0].bytes_sent == len(content) + 10


async def test_operators_fetch_the_model_of_a_task(server: Server) -> None:
    _, path, content = await member(server, SMALL)

    answer = await server.admin("GET", path.replace("/v1/", "/v1/admin/"))
    absent = await server.admin("GET", f"/v1/admin/blobs/{'0' * 64}")

    assert (answer.status, answer.body) == (200, content)
    assert absent.outcome == (404, "unknown")
