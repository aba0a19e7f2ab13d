"""Refusals that need only the request's head come before a single byte of the body."""

import asyncio

import pytest

from fedlens_proto.v1 import error_pb2
from fedlens_proto.wire import MAX_UPDATE_HEADER_BYTES, MEDIA_TYPE
from tests.server.http.running import Client, Server, connected, head, trained

ROUND = "/v1/tasks/1/rounds/1"
HEADER = 4 + MAX_UPDATE_HEADER_BYTES


async def answer_to_head(client: Client, path: str, size: int, kind: str = MEDIA_TYPE) -> tuple[int, str]:
    """Status and code, of a request whose body of `size` bytes is announced and never sent."""
    async with connected(client.server.url) as (reader, writer), asyncio.timeout(10):
        writer.write(head(client.bearer, path, size, kind=kind))
        answered = await reader.readuntil(b"\r\n\r\n")
        length = int(answered.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(answered.split()[1]), error_pb2.Error.FromString(await reader.readexactly(length)).code


@pytest.mark.parametrize(
    ("path", "size", "kind", "expected"),
    [
        (f"{ROUND}/update", 1000, MEDIA_TYPE, (403, "forbidden")),
        ("/v1/tasks/1/rounds/9/update", 1000, MEDIA_TYPE, (404, "unknown")),
        ("/v1/tasks/9/rounds/1/update", 1000, MEDIA_TYPE, (404, "unknown")),
        (f"{ROUND}/update", 1000, "text/plain", (415, "wrong-media-type")),
        (f"{ROUND}/evaluation", HEADER + 1, MEDIA_TYPE, (413, "too-large")),
    ],
)
async def test_membership_type_and_size_are_checked_first(
    server: Server, path: str, size: int, kind: str, expected: tuple[int, str]
) -> None:
    await server.member()
    late = await server.client(2)

    assert await answer_to_head(late, path, size, kind) == expected


async def test_the_credential_is_checked_first(server: Server) -> None:
    await server.member()

    assert await answer_to_head(Client(server, bytes(32)), f"{ROUND}/update", 1000) == (401, "unauthorised")


async def test_the_announced_length_is_checked_first(server: Server) -> None:
    client, assignment = await server.member()

    answer = await answer_to_head(client, f"{ROUND}/update", HEADER + len(trained()) + 1)

    assert answer == (413, "too-large")
    assert (await client.upload(assignment)).status == 200
