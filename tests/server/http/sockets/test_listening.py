"""TLS as it is served, and how long stopping takes."""

import asyncio
import selectors
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization

from fedlens_server.config import ConfigError
from fedlens_server.http.sockets.certificate import tls
from fedlens_server.http.sockets.listening import Runner, close, listen
from fedlens_server.init import initialise


def test_tls_older_than_1_2_is_refused(tmp_path: Path) -> None:
    initialise(tmp_path)

    context = tls(tmp_path / "server.pem", tmp_path / "server.key")

    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    initialise(tmp_path / "one")
    initialise(tmp_path / "two")

    with pytest.raises(ConfigError, match="are no certificate with its key"):
        tls(tmp_path / "one" / "server.pem", tmp_path / "two" / "server.key")


@pytest.mark.parametrize("key", ["certfile", "keyfile"])
def test_the_file_that_is_no_certificate_or_key_is_named(tmp_path: Path, key: str) -> None:
    initialise(tmp_path)
    files = {"certfile": tmp_path / "server.pem", "keyfile": tmp_path / "server.key"}
    (tmp_path / "garbage").write_text("garbage")

    for bad, fault in (
        (tmp_path / "garbage", r"holds no (certificate|private key) \(PEM\) that can be read$"),
        (tmp_path, "cannot be read: Is"),
    ):
        with pytest.raises(ConfigError, match=rf"^server\.{key}: {bad} {fault}"):
            tls(**files | {key: bad})


async def test_an_address_that_cannot_be_had_is_told_by_its_key() -> None:
    runner = Runner(web.Application())
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        for host, told in (
            ("203.0.113.1", f"admin.host: cannot listen on 203.0.113.1:{taken}: this machine has no such address"),
            ("nowhere.invalid", f"admin.host: cannot listen on nowhere.invalid:{taken}: "),
            ("127.0.0.1", f"admin.port: cannot listen on 127.0.0.1:{taken}: Address already in use"),
        ):
            with pytest.raises(ConfigError) as caught:
                await listen(runner, host, taken, None, "admin")
            assert str(caught.value).startswith(told)
    await runner.cleanup()


def test_an_encrypted_key_is_refused_instead_of_asking_for_its_passphrase(tmp_path: Path) -> None:
    initialise(tmp_path)
    key = serialization.load_pem_private_key((tmp_path / "server.key").read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"passphrase")
    encrypted = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    (tmp_path / "server.key").write_bytes(encrypted)

    with pytest.raises(ConfigError, match=r"server\.keyfile: .*server\.key is encrypted"):
        tls(tmp_path / "server.pem", tmp_path / "server.key")


class HurryingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands, also on a slow machine, and jumps to the next timer where nothing arrives."""

    skipped_s = 0.0

    def __init__(self) -> None:
        super().__init__(selector := selectors.DefaultSelector())
        select = selector.select

        def hurried(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            found = select(timeout if timeout is None else min(timeout, 0.01))
            self.skipped_s += 0.0 if found or timeout is None else timeout
            return found

        selector.select = hurried  # type: ignore[method-assign]

    def time(self) -> float:
        return self.skipped_s


def stopping_s(answer: Callable[[asyncio.Event], Awaitable[None]], within_s: float) -> float:
    """Seconds of the loop's clock that two runners take to stop, each with a request that is answered like this."""

    async def measured() -> float:
        clock, stopping = asyncio.get_running_loop().time, asyncio.Event()
        runners, writers, began = [], [], asyncio.Semaphore(0)

        async def handler(_: web.Request) -> web.Response:
            began.release()
            await answer(stopping)
            return web.Response()

        for _ in range(2):
            app = web.Application()
            app.router.add_get("/", handler)
            runner = Runner(app)
            await runner.setup()
            await listen(runner, "127.0.0.1", 0, None, "server")
            _, writer = await asyncio.open_connection(*runner.addresses[0][:2])
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await began.acquire()
            runners.append(runner)
            writers.append(writer)
        before = clock()
        stopping.set()
        async with asyncio.timeout(1000.0):  # of this loop's seconds
            await close(runners, within_s)
        seconds = clock() - before
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        return seconds

    with asyncio.Runner(loop_factory=HurryingLoop) as loop:
        return loop.run(measured())


def test_requests_that_do_not_end_hold_up_a_stop_once_however_many_runners_there_are() -> None:
    async def never(_: asyncio.Event) -> None:
        await asyncio.Event().wait()

    assert stopping_s(never, 30.0) == pytest.approx(30.0, abs=1.0)


def test_a_stop_waits_no_longer_than_its_requests_take() -> None:
    async def a_while(stopping: asyncio.Event) -> None:
        await stopping.wait()
        await asyncio.sleep(7.0)

    assert stopping_s(a_while, 30.0) == pytest.approx(7.0, abs=1.0)
