"""Clients behind nginx with the sample of its configuration."""

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import trustme

from tests.integration.processes import free_ports
from tests.server.bundles import tiny_bundle
from tests.server.http.running import Server, running, trained, until, update
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


def configured(server: Server, folder: Path, port: int) -> ssl.SSLContext:
    """Write the sample with a test's paths and addresses; returns the trust in its certificate."""
    folder.mkdir()
    ca = trustme.CA()
    certificate = ca.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(folder / "server.pem")
    certificate.private_key_pem.write_to_path(folder / "server.key")
    sample = (REPOSITORY / "deploy" / "nginx" / "fedlens.conf").read_text(encoding="utf-8")
    for written, meant in (
        ("127.0.0.1:8443", server.url if server.url.startswith("unix:") else urlsplit(server.url).netloc),
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
async def behind_nginx(server: Server, folder: Path, address: str = "127.0.0.1") -> AsyncIterator[None]:
    """Let a server's clients, which have this address, speak to it through nginx."""
    assert NGINX is not None
    (port,) = free_ports(1)
    trust = configured(server, folder, port)
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
