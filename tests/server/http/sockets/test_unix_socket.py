"""Unix sockets, on which a reverse proxy or operators of the same machine reach a server."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from fedlens_server import daemon
from fedlens_server.config import ConfigError
from fedlens_server.http.sockets.listening import Runner, listen_on_socket
from fedlens_server.store import Store
from tests.server.http.running import config


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[str]:
    runner = Runner(web.Application())
    await runner.setup()
    try:
        yield await listen_on_socket(runner, path, "server.socket")
    finally:
        await runner.cleanup()


async def status(path: Path, url: str = "http://server/healthz") -> int:
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session, session.get(url) as answer:
        return answer.status


async def test_a_server_listens_on_its_sockets_says_so_and_removes_them(tmp_path: Path) -> None:
    clients, stop = tmp_path / "clients.sock", asyncio.Event()
    settings = config(tmp_path, socket=clients)
    Store.open(settings.server.data).close()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    server = asyncio.create_task(daemon.serve(settings, ready.set_result, stop))
    line = await ready
    answered = await status(clients)
    mode = stat.S_IMODE(clients.stat().st_mode)
    stop.set()
    await server

    assert line.startswith(f"fedlens: ready, clients at unix:{clients}, operators at http://127.0.0.1:")
    assert (answered, mode) == (200, 0o660)
    assert not clients.exists()


async def test_a_socket_that_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "clients.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.listen()
    left.close()

    async with listening(path):
        assert await status(path) == 404


async def test_a_socket_on_which_a_process_listens_is_refused_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "clients.sock"
    async with listening(path):
        with pytest.raises(ConfigError) as caught:
            async with listening(path):
                pass
        answered = await status(path)

    assert str(caught.value) == (
        f"server.socket: cannot listen on {path}: Address already in use; "
        "it must be a path with nothing, or a socket on which no process listens, in a folder that the server may write"
    )
    assert answered == 404


async def test_a_file_that_is_no_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "clients.sock"
    path.write_text("mine")

    with pytest.raises(ConfigError, match=r"cannot listen on .*clients\.sock: a file or folder of this name is there;"):
        async with listening(path):
            pass

    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("gone/clients.sock", "No such file or directory"),
        ("file/clients.sock", "Not a directory"),
        ("x" * 108, "too long"),
    ],
)
async def test_a_socket_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(
        ConfigError, match=rf"^server\.socket: cannot listen on .*: .*{reason}; it must be a path"
    ) as caught:
        async with listening(tmp_path / path):
            pass

    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write in every folder")
async def test_a_folder_in_which_the_server_may_not_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)

    with pytest.raises(ConfigError, match="Permission denied"):
        async with listening(tmp_path / "closed" / "clients.sock"):
            pass
