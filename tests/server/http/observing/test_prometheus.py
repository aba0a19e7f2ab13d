"""Prometheus itself reads a running server, by the files in `deploy`."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.integration.processes import free_ports
from tests.server.bundles import tiny_bundle
from tests.server.http.observing.test_log_of_a_run import federation
from tests.server.http.running import ADMIN_TOKEN, Server
from tests.test_repository import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*", "$task": ".*"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)"),
]


def expressions() -> list[str]:
    """Every query of the dashboard, with its variables filled in."""
    dashboard = json.loads((DEPLOY / "grafana" / "fedlens.json").read_text(encoding="utf-8"))
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    for name, value in VARIABLES.items():
        found = [expression.replace(name, value) for expression in found]
    return found


class Prometheus:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def get(self, path: str, **parameters: str) -> dict[str, Any]:
        async with self.session.get(f"{self.url}{path}", params=parameters) as answer:
            found: dict[str, Any] = await answer.json()
        assert found["status"] == "success", found
        return found["data"]

    async def values(self, expression: str) -> list[Any]:
        return list((await self.get("/api/v1/query", query=expression))["result"])

    async def scrapes(self, more: int) -> None:
        """Return after so many more scrapes that went well; nothing announces them."""
        wanted = await self._count() + more
        async with asyncio.timeout(30):
            while await self._count() < wanted:  # noqa: ASYNC110  (there is no event to wait for)
                await asyncio.sleep(0.1)

    async def empty(self, expressions: list[str]) -> list[str]:
        """The queries that get no value; a scrape that takes too long leaves all without one until the next."""
        left = expressions
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                while left := [each for each in left if not await self.values(each)]:  # noqa: ASYNC110  (as above)
                    await asyncio.sleep(0.1)
        return left

    async def _count(self) -> int:
        with suppress(aiohttp.ClientError):  # it is starting
            for found in await self.values('sum_over_time(up{job="fedlens"}[5m])'):
                return int(found["value"][1])
        return 0


@asynccontextmanager
async def prometheus(server: Server, folder: Path) -> AsyncIterator[Prometheus]:
    """Prometheus with our configuration, but for addresses, files and its haste."""
    token = folder / "token"
    token.write_text(ADMIN_TOKEN, encoding="utf-8")
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    for old, new in (
        ("_interval: 15s", "_interval: 1s"),
        ("fedlens.rules.yml", str(DEPLOY / "prometheus" / "fedlens.rules.yml")),
        ("scheme: https", "scheme: http"),
        ("/etc/prometheus/fedlens.token", str(token)),
        ("    tls_config:\n      ca_file: /etc/prometheus/fedlens-ca.pem\n", ""),
        ("127.0.0.1:8444", urlsplit(server.admin_url).netloc),
    ):
        assert old in config
        config = config.replace(old, new)
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        *(f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"),
        *(f"--web.listen-address={address}", "--log.level=warn"),
    )
    try:
        yield Prometheus(f"http://{address}", server.session)
    finally:
        process.terminate()
        await process.wait()


async def test_every_query_of_the_dashboard_has_a_value_and_every_alert_is_evaluated(
    server: Server, tmp_path: Path
) -> None:
    async with prometheus(server, tmp_path) as found:
        await found.scrapes(1)
        await federation(server)
        await server.create(tiny_bundle(3), "second", population=2)
        await (await server.client(9)).check_in()
        await found.scrapes(2)
        empty = await found.empty(expressions())
        groups = (await found.get("/api/v1/rules"))["groups"]

    rules = [rule for each in groups for rule in each["rules"]]
    assert empty == []
    assert len(expressions()) > 25
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert len(rules) > 10
