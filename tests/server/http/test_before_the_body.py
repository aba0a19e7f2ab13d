"""Refusals that need only the request's head come before a single byte of the body."""

import asyncio
from urllib.parse import urlsplit

import pytest

from fedlens_proto.v1 import assignment_pb2, error_pb2
from fedlens_proto.wire import MAX_UPDATE_HEADER_BYTES, MEDIA_TYPE
from tests.server.bundles import tiny_bundle
from tests.server.http.running import Client, Server, round_path, trained, update

ROUND = assignment_pb2.Assignment(task=1, round=1)


@pytest.fixture
async def late(server: Server) -> Client:
    """Enrolled, but after the first round had opened; its only member has reported in none."""
    await server.create(tiny_bundle(), population=1)
    await (await server.client(1)).assignment()
    return await server.client(2)


async def answer_to_head(client: Client, path: str, size: int, kind: str = MEDIA_TYPE) -> tuple[int, str]:
    """Status and code, of a request whose body of `size` bytes is announced and never sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(client.server.url).port)
    try:
        head = (
            f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {client.bearer}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode())
        async with asyncio.timeout(10):
            answered = await reader.readuntil(b"\r\n\r\n")
            length = int(answered.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(answered.split()[1]), error_pb2.Error.FromString(await reader.readexactly(length)).code
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("task", "number", "expected"), [(1, 1, (403, "forbidden")), (1, 9, (404, "unknown")), (9, 1, (404, "unknown"))]
)
async def test_membership_is_checked_first(late: Client, task: int, number: int, expected: tuple[int, str]) -> None:
    path = round_path(assignment_pb2.Assignment(task=task, round=number))

    assert await answer_to_head(late, f"{path}/update", 1000) == expected


async def test_the_announced_length_is_checked_first(server: Server) -> None:
    await server.create(tiny_bundle(), population=1)
    client = await server.client(1)
    assignment = await client.assignment()
    most = 4 + MAX_UPDATE_HEADER_BYTES + len(trained())

    answer = await answer_to_head(client, f"{round_path(assignment)}/update", most + 1)

    assert answer == (413, "too-large")
    assert (await client.upload(assignment, update(assignment, trained()))).status == 200


async def test_the_credential_and_the_type_are_checked_first(server: Server, late: Client) -> None:
    stranger = Client(server, bytes(32))

    assert await answer_to_head(stranger, f"{round_path(ROUND)}/update", 1000) == (401, "unauthorised")
    assert await answer_to_head(late, f"{round_path(ROUND)}/update", 1000, "text/plain") == (415, "wrong-media-type")


async def test_a_small_message_that_is_too_long_is_refused_first(late: Client) -> None:
    answer = await answer_to_head(late, f"{round_path(ROUND)}/evaluation", 4 + MAX_UPDATE_HEADER_BYTES + 1)

    assert answer == (413, "too-large")
