"""Connections that strangers open and leave: they neither stay nor keep others out."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from fedlens_server.http.sockets import listening
from fedlens_server.http.sockets.addresses import Addresses
from fedlens_server.http.sockets.certificate import tls
from fedlens_server.init import initialise
from tests.server.http.running import Server, running, until

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(server: Server, begin: bytes = b"", address: str = "127.0.0.1") -> Stream:
    port = urlsplit(server.url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(begin)
    return reader, writer


async def closed(stream: Stream) -> bool:
    """Tell whether the server closes a connection within some seconds."""
    reader, writer = stream
    try:
        async with asyncio.timeout(5):
            return await reader.read() == b""
    except ConnectionResetError:
        return True
    finally:
        writer.close()


async def test_a_connection_without_a_whole_head_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path, idle_s=0.1) as server:
        silent, half = await connect(server), await connect(server, b"GET /healthz HTTP/1.1\r\nHost:")
        assert await closed(silent)
        assert await closed(half)


async def test_idle_connections_make_room_for_those_that_ask(tmp_path: Path) -> None:
    async with running(tmp_path, max_connections=8) as server:
        client = await server.client(1)
        held = asyncio.create_task(client.check_in(hold_ms=60_000))
        await until(lambda: len(server.service.polls) == 1)

        idle = [await connect(server) for _ in range(40)]
        other = await server.client(2)

        assert (await other.check_in()).WhichOneof("result") == "wait"
        assert len(server.service.polls) == 1  # a held check-in is not idle
        assert await closed(idle[0])
        assert len(server.service.servers["clients"].connections) <= 8
        held.cancel()
        for _, writer in idle:
            writer.close()


async def test_one_address_with_many_connections_keeps_no_other_out(tmp_path: Path) -> None:
    async with running(tmp_path, max_connections_per_address=8) as server:
        server.service.servers["clients"].addresses = Addresses(unlimited=())
        other = await connect(server, address="127.0.0.3")

        many = [await connect(server, address="127.0.0.2") for _ in range(40)]
        await until(lambda: len(server.service.servers["clients"].connections) <= 9)
        _, writer = other
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")

        assert (await other[0].readline()).split()[1] == b"200"
        assert await closed(many[0])
        for _, writer in [other, *many]:
            writer.close()


async def test_this_machine_and_a_trusted_proxy_may_have_many_connections(tmp_path: Path) -> None:
    async with running(tmp_path, max_connections_per_address=8, trusted_proxies=["10.0.0.1"]) as server:
        many = [await connect(server) for _ in range(40)]
        await until(lambda: len(server.service.servers["clients"].connections) == 40)

        assert server.service.addresses.limited("10.0.0.1") == ""
        for _, writer in many:
            writer.close()


@asynccontextmanager
async def serving_tls(folder: Path) -> AsyncIterator[tuple[listening.Runner, int]]:
    """A server of nothing, and its port."""
    initialise(folder)
    runner = listening.Runner(web.Application())
    await runner.setup()
    context = tls(folder / "server.pem", folder / "server.key")
    url = await listening.listen(runner, "127.0.0.1", 0, context, "server")
    yield runner, int(url.rpartition(":")[2])
    await listening.close([runner], 5.0)
    assert runner.server is None


async def status_over_tls(folder: Path, port: int) -> bytes:
    trust = ssl.create_default_context(cafile=folder / "ca.pem")
    trust.check_hostname = False
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.split()[1]


async def silent(port: int, address: str = "127.0.0.1") -> Stream:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def test_connections_that_never_begin_tls_make_room_for_those_that_do(tmp_path: Path) -> None:
    async with serving_tls(tmp_path) as (runner, port):
        assert runner.server is not None
        opened = [await silent(port) for _ in range(300)]

        assert await status_over_tls(tmp_path, port) == b"404"
        await until(lambda: sum(reader.at_eof() for reader, _ in opened) >= 200)
        assert 90 <= len(runner.server.connections) <= listening.MAX_OPERATORS
        for _, writer in opened:
            writer.close()
        await until(lambda: runner.server is not None and not runner.server.connections)


async def test_one_address_that_never_begins_tls_keeps_no_other_out(tmp_path: Path) -> None:
    async with serving_tls(tmp_path) as (runner, port):
        runner.server.most_of_address, runner.server.addresses = 8, Addresses(unlimited=())
        other = await silent(port, "127.0.0.3")

        many = [await silent(port, "127.0.0.2") for _ in range(40)]

        await until(lambda: sum(reader.at_eof() for reader, _ in many) == 32)
        assert not other[0].at_eof()
        for _, writer in [other, *many]:
            writer.close()


async def test_a_handshake_that_does_not_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HANDSHAKE_S", 0.1)
    async with serving_tls(tmp_path) as (runner, port):
        assert runner.server is not None

        assert await closed(await silent(port))
        await until(lambda: runner.server is not None and not runner.server.connections)


async def test_a_stop_closes_connections_that_never_began_tls(tmp_path: Path) -> None:
    async with serving_tls(tmp_path) as (runner, port):
        stream = await silent(port)
        await until(lambda: runner.server is not None and len(runner.server.connections) == 1)

    assert await closed(stream)
