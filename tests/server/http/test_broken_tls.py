"""Clients that break TLS, or do not say goodbye: over TLS a connection ends when the server says so."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from fedlens_proto.v1 import assignment_pb2
from fedlens_server.init import initialise
from tests.server.http.observing.test_metrics import scraped
from tests.server.http.running import Client, Server, connected, head, round_path, running, trained, until, update
from tests.server.telemetry.logs import logged

LARGE = 200_000  # features; 2 * 200 000 * 4 bytes reach a temporary file before they are all there
UPDATE = "PUT /v1/tasks/{task}/rounds/{round}/update"
# A record of 32 bytes that belongs to no key.
GARBAGE = b"\x17\x03\x03\x00\x20" + bytes(32)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """The files of a certificate and its key."""
    initialise(tmp_path / "tls")
    return tmp_path / "tls" / "server.pem", tmp_path / "tls" / "server.key"


def begun(client: Client, assignment: assignment_pb2.Assignment) -> bytes:
    """A request with all but the last bytes of an update."""
    body = update(assignment, trained(LARGE))
    return head(client.bearer, f"{round_path(assignment)}/update", len(body)) + body[:-1000]


def say_no_goodbye(writer: asyncio.StreamWriter) -> None:
    """Read no more, so that the server's own goodbye gets no answer."""
    assert isinstance(writer.transport, asyncio.Transport)
    writer.transport.pause_reading()


def gone(server: Server) -> Callable[[], bool]:
    """Whether the server has given an update up."""
    return lambda: server.service.metrics.served[UPDATE].codes == {"gone": 1}


async def test_a_client_that_never_says_goodbye_has_one_upload_too(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    async with running(tmp_path, certificate=certificate) as server, AsyncExitStack() as slow:
        client, assignment = await server.member(LARGE)
        seen: set[Path] = set()

        def has_begun() -> bool:
            return not seen.issuperset(server.temporary_files())

        for _ in range(3):
            _, writer = await slow.enter_async_context(connected(server.url))
            say_no_goodbye(writer)
            writer.write(begun(client, assignment))
            await until(has_begun)
            seen.update(server.temporary_files())

        await until(lambda: len(server.temporary_files()) == 1)
        assert server.service.uploads == 1


async def test_the_connection_of_a_client_that_is_given_up_ends_without_its_goodbye(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    async with running(tmp_path, certificate=certificate, upload_stall_s=0.05) as server:
        client, assignment = await server.member(LARGE)
        connections = server.service.servers["clients"]
        others = len(connections.connections)

        async with connected(server.url) as (_, writer):
            say_no_goodbye(writer)
            writer.write(begun(client, assignment))
            await until(gone(server))

            await until(lambda: len(connections.connections) == others)


async def test_a_stream_that_breaks_inside_a_body_is_a_client_that_is_gone(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    with logged("human") as log:
        async with running(tmp_path, certificate=certificate) as server:
            client, assignment = await server.member(LARGE)
            async with connected(server.url) as (_, writer):
                writer.write(begun(client, assignment))
                await writer.drain()
                await until(lambda: bool(server.temporary_files()))
                os.write(writer.get_extra_info("socket").fileno(), GARBAGE)
                await until(lambda: not server.temporary_files())
            codes = {key[1]: count for key, count in (await scraped(server)).items() if key[2:] == (UPDATE,)}

    assert codes == {"gone": 1.0}
    assert "failed" not in str(log)
