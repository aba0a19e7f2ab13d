"""Fetching blobs, whole and in ranges: from the database, from files, and computed while they are sent."""

import asyncio
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedlens_proto import blob
from fedlens_proto.v1 import assignment_pb2
from fedlens_server.store import Location, StateAddress
from fedlens_server.store.objects import AT_A_TIME
from tests.server.bundles import tiny_bundle
from tests.server.elsewhere import needs_a_folder
from tests.server.http.running import Client, Server, head, running, until, update
from tests.server.networks import network, weights

SMALL, LARGE = 3, 40_000  # features: a blob in the database, a blob in a file
VAST = 1_000_000  # 8 MB: more than the system holds for a client that does not take it
WIDTH = 200_000  # 2 x 200,000 float32: more than one piece
CLASSIFIERS = [((1.0, 0.0), (0.0, 1.0)), ((2.0, 0.0), (3.0, 3.0))]


async def member(server: Server, features: int) -> tuple[Client, str, bytes]:
    """A client that may fetch this blob from there."""
    client, _ = await server.member(features)
    content = tiny_bundle(features).initial
    return client, f"/v1/blobs/{sha256(content).hexdigest()}", content


async def mixing(server: Server, width: int = SMALL) -> list[tuple[Client, assignment_pb2.BlobSet, str]]:
    """Two clients in the second round, with the weighted sum that each is to fetch, and from where."""
    await server.create(network(width), method="pfedsim", options={"warm_up": 0})
    clients = [await server.client(i) for i in range(2)]
    for i, client in enumerate(clients):
        assignment = await client.assignment()
        trained = blob.encode(weights(1.0 + i, CLASSIFIERS[i], width))
        assert (await client.upload(assignment, update(assignment, trained))).status == 200
    items = [(await client.assignment()).sets[0] for client in clients]
    return [(client, item, f"/v1/blobs/{item.sha256.hex()}") for client, item in zip(clients, items, strict=True)]


@pytest.fixture(params=[SMALL, LARGE, WIDTH])
async def fetchable(server: Server, request: pytest.FixtureRequest) -> tuple[Client, str, bytes]:
    """A client that may fetch this blob from there: a row, a file, or a weighted sum."""
    if request.param != WIDTH:
        return await member(server, request.param)
    (client, item, path), _ = await mixing(server, WIDTH)
    whole = (await client.send("GET", path)).body
    assert (sha256(whole).digest(), len(whole)) == (item.sha256, item.size)
    return client, path, whole


async def test_a_member_fetches_its_blob(fetchable: tuple[Client, str, bytes]) -> None:
    client, path, content = fetchable

    answer, head = await client.send("GET", path), await client.send("HEAD", path)

    assert (answer.status, answer.body, head.status, head.body) == (200, content, 200, b"")
    for headers in (answer.headers, head.headers):
        assert headers["Content-Length"] == str(len(content))
        assert headers["Cache-Control"] == "private, immutable"
        assert headers["Content-Type"] == "application/octet-stream"
        assert headers["Accept-Ranges"] == "bytes"


async def test_a_member_fetches_ranges(fetchable: tuple[Client, str, bytes]) -> None:
    client, path, content = fetchable
    size = len(content)
    ranges = {"0-9": (0, 9), "100-": (100, size - 1), "-7": (size - 7, size - 1), f"{size - 2}-": (size - 2, size - 1)}

    for asked, (first, last) in ranges.items():
        answer = await client.send("GET", path, Range=f"bytes={asked}")

        assert (answer.status, answer.body) == (206, content[first : last + 1])
        assert answer.headers["Content-Range"] == f"bytes {first}-{last}/{size}"


async def test_a_range_that_cannot_be_served_is_416(fetchable: tuple[Client, str, bytes]) -> None:
    client, path, content = fetchable
    asked = ["bytes=9999999-", "bytes=5-2", "bytes=x", "lines=1-2", "bytes=0-1,3-4"]

    answers = [await client.send("GET", path, Range=each) for each in asked]

    assert [answer.outcome for answer in answers] == [(416, "wrong-range")] * 5
    assert {answer.headers["Content-Range"] for answer in answers} == {f"bytes */{len(content)}"}


@needs_a_folder
async def test_a_blob_that_is_deleted_while_it_is_asked_for_is_unknown(server: Server) -> None:
    client, path, content = await member(server, LARGE)
    server.service.store.blobs.files.path(sha256(content).digest()).unlink()

    answer = await client.send("GET", path)

    assert answer.outcome == (404, "unknown")
    assert "Cache-Control" not in answer.headers


async def test_a_blob_that_comes_slowly_from_elsewhere_keeps_nobody_else_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, path, content = await member(server, SMALL)
    blobs, other = server.service.store.blobs, tiny_bundle(SMALL).id.hex()
    locate, begun, may_end = blobs.locate, list[bytes](), threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    def slowly(digest: bytes) -> Location:
        begun.append(digest)
        may_end.wait()
        return locate(digest)

    monkeypatch.setattr(StateAddress, "is_here", False)
    monkeypatch.setattr(blobs, "locate", slowly)
    try:
        fetching = [asyncio.create_task(client.send("GET", path)) for _ in range(2 * AT_A_TIME)]
        await until(lambda: bool(begun))
        async with asyncio.timeout(20):
            assert (await client.send("GET", f"/v1/blobs/{other}")).status == 200
            assert (await server.admin("GET", "/v1/admin/tokens")).status == 200
    finally:
        may_end.set()
    assert [answer.body for answer in await asyncio.gather(*fetching)] == [content] * len(fetching)
    assert begun == [sha256(content).digest()]


async def test_every_part_of_the_bundle_is_there_for_who_can_run_it(server: Server) -> None:
    client, _, _ = await member(server, SMALL)
    bundle = tiny_bundle(SMALL)

    fetched = {digest: (await client.send("GET", f"/v1/blobs/{digest.hex()}")).body for digest in bundle.by_digest}
    manifest = await client.send("GET", f"/v1/blobs/{bundle.id.hex()}")

    assert fetched == bundle.by_digest
    assert manifest.body == bundle.manifest


async def test_what_members_fetch_is_counted(server: Server, fetchable: tuple[Client, str, bytes]) -> None:
    client, path, content = fetchable
    before = (await server.show()).rounds[-1].bytes_sent

    await client.send("GET", path)
    await client.send("HEAD", path)
    await client.send("GET", path, Range="bytes=0-9")
    await client.send("GET", path, Range="bytes=9999999-")

    assert (await server.show()).rounds[-1].bytes_sent == before + len(content) + 10


async def test_another_clients_weighted_sum_is_unknown(server: Server) -> None:
    (_, _, path), (other, _, _) = await mixing(server)

    assert (await other.send("GET", path)).outcome == (404, "unknown")


async def test_a_weighted_sum_whose_source_is_lost_meanwhile_ends_the_connection_and_is_not_passed_off_as_whole(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    (client, _, path), _ = await mixing(server, WIDTH)
    for entries in server.service.federation.tasks[1].values.clients.values():
        with server.service.store.blobs.files.path(entries["model"].digest).open("r+b") as file:
            file.truncate(1_200_000)

    with pytest.raises(Exception, match=r"payload|closed|disconnected"):
        await client.send("GET", path)

    assert [record.levelno for record in caplog.records if "computed to its end" in record.message] == [logging.ERROR]


async def asking(client: Client, path: str) -> socket.socket:
    """A connection with few places in its receive buffer, over which a blob has been asked for."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(made, ("127.0.0.1", urlsplit(client.server.url).port))
    await loop.sock_sendall(made, head(client.bearer, path, 0, method="GET"))
    return made


@pytest.mark.parametrize("kind", ["file", "computed"])
@pytest.mark.parametrize(("rate", "taken"), [(0.0, 0), (1e9, 1024)], ids=["stalls", "drips"])
async def test_a_client_that_does_not_take_its_blob_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, rate: float, taken: int
) -> None:
    async with running(tmp_path, upload_stall_s=0.3, min_upload_rate=rate) as server:
        if kind == "file":
            client, path, _ = await member(server, VAST)
        else:
            (client, _, path), _ = await mixing(server, VAST)
        connections, before = server.service.servers["clients"], len(server.service.servers["clients"].connections)
        with await asking(client, path) as slow:
            await until(lambda: len(connections.connections) > before)

            def is_cut_off() -> bool:
                with suppress(BlockingIOError, ConnectionError):
                    slow.recv(taken)
                return len(connections.connections) == before

            await until(is_cut_off)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_operators_fetch_the_model_of_a_task(server: Server) -> None:
    _, path, content = await member(server, SMALL)

    answer = await server.admin("GET", path.replace("/v1/", "/v1/admin/"))
    absent = await server.admin("GET", f"/v1/admin/blobs/{'0' * 64}")

    assert (answer.status, answer.body) == (200, content)
    assert absent.outcome == (404, "unknown")
