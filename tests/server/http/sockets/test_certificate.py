"""A renewed certificate is used without a restart; one that cannot be used changes nothing."""

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from fedlens_server import daemon
from fedlens_server.http.sockets.certificate import LOOK_EVERY_S, Certificate
from fedlens_server.store import Store
from tests.server.fakes import ManualClock
from tests.server.http.running import config, until
from tests.server.telemetry.logs import Log, logged

CA = trustme.CA()
TRUST = ssl.create_default_context()
CA.configure_trust(TRUST)
READ, UNUSABLE = "INFO certificate-read", "WARNING certificate-unusable"


@dataclass
class Pair:
    certfile: Path
    keyfile: Path

    def write(self, key_of: trustme.LeafCert | None = None) -> trustme.LeafCert:
        """Write a new certificate, with its key or that of another one."""
        issued = CA.issue_cert("localhost", "127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(self.certfile)
        (key_of or issued).private_key_pem.write_to_path(self.keyfile)
        return issued


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def serves(self) -> str:
        """The certificate that the server showed (PEM)."""
        shown = self.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return ssl.DER_cert_to_PEM_cert(shown)

    async def status(self) -> bytes:
        self.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await self.reader.readuntil(b"\r\n\r\n")
        await self.reader.readexactly(len(b"ok\n"))
        return head.split()[1]


@dataclass
class Served:
    pair: Pair
    clock: ManualClock
    log: Log
    url: str

    @asynccontextmanager
    async def connected(self, name: str = "localhost") -> AsyncIterator[Connection]:
        port = urlsplit(self.url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=TRUST, server_hostname=name)
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    async def shown(self, name: str = "localhost") -> str:
        async with self.connected(name) as connection:
            return connection.serves

    async def logs(self, words: str, count: int = 1) -> None:
        await until(lambda: str(self.log).count(words) == count)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Served, trustme.LeafCert]]:
    """A server with TLS, and its certificate."""
    pair, clock, stop = Pair(folder / "server.pem", folder / "server.key"), ManualClock(), asyncio.Event()
    first = pair.write()
    settings = config(folder, certificate=(pair.certfile, pair.keyfile))
    Store.open(settings.server.data).close()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with logged("human") as log:
        server = asyncio.create_task(daemon.serve(settings, ready.set_result, stop, clock))
        try:
            url = (await ready).split()[4].rstrip(",")
            yield Served(pair, clock, log, url), first
        finally:
            stop.set()
            await server


def pem(certificate: trustme.LeafCert) -> str:
    return certificate.cert_chain_pems[0].bytes().decode()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])  # a handshake does not name an address
async def test_new_handshakes_use_a_renewed_certificate_and_connections_stay(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as (server, first), server.connected() as old:
        before = await old.status()
        second = server.pair.write()

        server.clock.wind(LOOK_EVERY_S)
        await server.logs(READ)

        assert (old.serves, await server.shown(name)) == (pem(first), pem(second))
        assert (before, await old.status()) == (b"200", b"200")


async def test_a_hangup_signal_has_the_certificate_read_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _):
        second = server.pair.write()

        os.kill(os.getpid(), signal.SIGHUP)
        await server.logs(READ)

        assert await server.shown() == pem(second)


async def test_a_certificate_with_the_key_of_another_one_is_told_once_and_not_used(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, first):
        server.pair.write(key_of=first)

        server.clock.wind(LOOK_EVERY_S)
        await server.logs(UNUSABLE)
        during = await server.shown()
        second = server.pair.write()
        server.clock.wind(LOOK_EVERY_S)
        await server.logs(READ)

        assert (during, await server.shown()) == (pem(first), pem(second))
        assert str(server.log).count(UNUSABLE) == 1
        assert f"{server.pair.certfile} and {server.pair.keyfile} are no certificate with its key" in str(server.log)


async def test_a_certificate_of_an_unknown_version_is_told_and_the_next_one_is_used(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, first):
        certificate = ssl.PEM_cert_to_DER_cert(server.pair.write(key_of=first).cert_chain_pems[0].bytes().decode())
        version_3 = bytes.fromhex("a003020102")
        assert version_3 in certificate
        unknown = certificate.replace(version_3, bytes.fromhex("a003020107"), 1)
        server.pair.certfile.write_text(ssl.DER_cert_to_PEM_cert(unknown))

        server.clock.wind(LOOK_EVERY_S)
        await server.logs(UNUSABLE)
        second = server.pair.write()
        server.clock.wind(LOOK_EVERY_S)
        await server.logs(READ)

        assert await server.shown() == pem(second)


@pytest.mark.parametrize("share", [0.0, 0.5])
async def test_a_file_that_is_half_written_or_missing_leaves_the_old_certificate(tmp_path: Path, share: float) -> None:
    async with serving(tmp_path) as (server, first):
        written = server.pair.keyfile.read_bytes()
        server.pair.keyfile.unlink()
        if share:
            server.pair.keyfile.write_bytes(written[: int(len(written) * share)])

        server.clock.wind(LOOK_EVERY_S)
        await server.logs(UNUSABLE)

        assert await server.shown() == pem(first)


async def test_files_that_stay_as_they_are_are_not_read_again(tmp_path: Path) -> None:
    Pair(tmp_path / "server.pem", tmp_path / "server.key").write()
    certificate, clock = Certificate(tmp_path / "server.pem", tmp_path / "server.key"), ManualClock()

    with logged("human") as log:
        following = asyncio.create_task(certificate.follow(clock))
        for _ in range(5):
            await asyncio.sleep(0)
            clock.wind(LOOK_EVERY_S)
        following.cancel()

    assert str(log) == ""


async def test_connections_that_end_before_their_answer_are_counted_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _):
        for _ in range(20):
            async with server.connected() as connection:
                connection.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with server.connected() as connection:
            assert await connection.status() == b"200"

        assert "Exception in callback" not in str(server.log)
