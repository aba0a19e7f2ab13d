"""Clients behind nginx with the sample of its configuration."""

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import pytest
import trustme

from tests.integration.processes import free_ports
from tests.server.bundles import tiny_bundle
from tests.server.elsewhere import Cluster, Gateway, elsewhere
from tests.server.http.running import Server, opened, running, trained, until, update
from tests.server.http.test_blob_responses import member
from tests.server.http.test_standby import configured as standby_of
from tests.server.http.test_standby import serving
from tests.server.telemetry.logs import logged
from tests.test_repository import REPOSITORY

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
# 2 x 1,000,000 float32: 8 MB, eight times what nginx takes by default.
FEATURES = 1_000_000
MAIN = """\
user root;
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/fedlens.conf;
}}
"""

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


def configured(server: Server, folder: Path, port: int, standby: str, files: Path) -> ssl.SSLContext:
    """Write the sample with a test's paths and addresses; returns the trust in its certificate."""
    folder.mkdir()
    ca = trustme.CA()
    certificate = ca.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(folder / "server.pem")
    certificate.private_key_pem.write_to_path(folder / "server.key")
    sample = (REPOSITORY / "deploy" / "nginx" / "fedlens.conf").read_text(encoding="utf-8")
    for written, meant in (
        ("127.0.0.1:8443", server.url if server.url.startswith("unix:") else urlsplit(server.url).netloc),
        ("# server 192.0.2.2:8443", f"server {standby}"),
        ("/var/lib/fedlens/blobs", str(files)),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/fedlens", str(folder)),
    ):
        assert written in sample
        sample = sample.replace(written, meant)
    (folder / "fedlens.conf").write_text(sample, encoding="utf-8")
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder), encoding="utf-8")
    trust = ssl.create_default_context()
    ca.configure_trust(trust)
    return trust


@asynccontextmanager
async def behind_nginx(
    server: Server,
    folder: Path,
    address: str = "127.0.0.1",
    standby: str = "127.0.0.1:1",
    files: Path | None = None,
) -> AsyncIterator[None]:
    """Let a server's clients, which have this address, speak through nginx to it, or to its standby.

    `files` are those that nginx sends by itself, by default the server's.
    """
    assert NGINX is not None
    (port,) = free_ports(1)
    trust = configured(server, folder, port, standby, files or server.folder / "blobs")
    nginx = await asyncio.create_subprocess_exec(NGINX, "-c", folder / "nginx.conf", "-e", folder / "error.log")
    try:
        connector = aiohttp.TCPConnector(ssl=trust, local_addr=(address, 0), family=socket.AF_INET)
        async with aiohttp.ClientSession(connector=connector) as server.session:
            server.url = f"https://localhost:{port}"
            while nginx.returncode is None:
                with suppress(aiohttp.ClientConnectorError):
                    await server.request("GET", f"{server.url}/readyz")
                    break
            yield
    finally:
        nginx.terminate()
        await nginx.wait()


async def test_clients_enrol_wait_and_upload_through_nginx_and_operators_are_not_there(tmp_path: Path) -> None:
    async with running(tmp_path) as server, behind_nginx(server, tmp_path / "nginx"):
        client = await server.client(1)
        waiting = asyncio.create_task(client.check_in(hold_ms=30_000))
        await until(lambda: len(server.service.polls) == 1)
        await server.create(tiny_bundle(FEATURES), population=1)
        told = await waiting
        body = update(told.assignment, trained(FEATURES))
        stored = await client.upload(told.assignment, body)
        admin = await server.request("GET", f"{server.url}/v1/admin/tasks")
        other = await server.request("GET", f"{server.url}/metrics")

    assert told.WhichOneof("result") == "assignment"
    assert len(body) > 8_000_000
    assert stored.status == 200
    assert (admin.status, other.status) == (404, 404)


@pytest.mark.parametrize("way", ["port", "socket"])
async def test_the_log_has_the_addresses_of_clients_though_they_claim_others(tmp_path: Path, way: str) -> None:
    server_has: dict[str, Any] = {
        "port": {"trusted_proxies": ["127.0.0.1"]},
        "socket": {"socket": tmp_path / "clients.sock"},
    }[way]
    async with (
        running(tmp_path, **server_has) as server,
        behind_nginx(server, tmp_path / "nginx", address="127.0.0.7"),
    ):
        with logged("human") as log:
            client = await server.client(1)
            refused = await client.send("POST", "/v1/check-in", b"no message", X_Forwarded_For="203.0.113.9")

    assert refused.status == 400
    assert [line.rpartition("address=")[2] for line in str(log).splitlines()] == ["127.0.0.7"] * 2


async def test_nginx_tries_the_next_server_as_long_as_one_leads(
    tmp_path: Path, cluster: Cluster, gateway: Gateway
) -> None:
    state = elsewhere(tmp_path / "one" / "data", cluster, gateway)
    opened(state.folder, state).close()
    ports = free_ports(2)
    one, two = (standby_of(tmp_path / name, state, port) for name, port in zip(("one", "two"), ports, strict=True))

    async with serving(one) as (of_first, stop_first):
        await of_first.get()
        async with serving(two) as (of_second, _), aiohttp.ClientSession() as session:
            await of_second.get()
            nothing = cast(Any, None)
            server = Server(f"http://127.0.0.1:{ports[0]}", "", nothing, nothing, session, tmp_path)
            async with behind_nginx(server, tmp_path / "nginx", standby=f"127.0.0.1:{ports[1]}"):
                before = [(await server.client(index)).bearer for index in range(8)]
                stop_first.set()
                await of_second.get()
                after = [(await server.client(index)).bearer for index in range(4, 12)]

    assert len({*before, *after}) == 12


async def test_nginx_sends_the_files_that_the_server_allows(tmp_path: Path) -> None:
    has: dict[str, Any] = {"trusted_proxies": ["127.0.0.1"], "accel_location": "/fedlens-blobs/"}
    async with running(tmp_path, **has) as server:
        direct = server.url
        async with behind_nginx(server, tmp_path / "nginx"):
            client, path, content = await member(server, FEATURES)
            whole = await client.send("GET", path)
            part = await client.send("GET", path, Range="bytes=100-199")
            outside = await client.send("GET", path, Range="bytes=999999999-")
            stranger = await client.send("GET", f"/v1/blobs/{'0' * 64}")
            inside = await client.send("GET", path.replace("/v1/blobs/", "/fedlens-blobs/"))
            told = await server.request("GET", direct + path, Authorization=client.bearer)

    assert whole.body == content
    assert whole.headers["Content-Type"] == part.headers["Content-Type"] == "application/octet-stream"
    assert whole.headers["Cache-Control"] == "private, immutable"
    assert (part.status, part.body) == (206, content[100:200])
    assert part.headers["Content-Range"] == f"bytes 100-199/{len(content)}"
    assert outside.outcome == (416, "wrong-range")
    assert stranger.outcome == (404, "unknown")
    assert (inside.status, b"nginx" in inside.body) == (404, True)
    assert (told.status, told.body) == (200, b"")
    assert told.headers["X-Accel-Redirect"] == path.replace("/v1/blobs/", "/fedlens-blobs/")


async def test_a_file_that_nginx_does_not_find_is_to_be_asked_for_again(tmp_path: Path) -> None:
    has: dict[str, Any] = {"trusted_proxies": ["127.0.0.1"], "accel_location": "/fedlens-blobs/"}
    async with running(tmp_path, **has) as server, behind_nginx(server, tmp_path / "nginx", files=tmp_path):
        client, path, _ = await member(server, FEATURES)

        assert (await client.send("GET", path)).status == 503
