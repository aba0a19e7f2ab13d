"""Two servers of one database: the second answers operators who leads, and serves once the first has gone."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path

import aiohttp
import pytest

from fedlens_proto.v1 import check_in_pb2
from fedlens_server import daemon
from fedlens_server.config import Config
from fedlens_server.errors import StoreUnusable
from fedlens_server.store import StateAddress
from tests.integration.processes import free_ports
from tests.server.elsewhere import Cluster, Gateway, elsewhere
from tests.server.http.running import ADMIN_TOKEN, READ_TOKEN, Server, config, opened, until


def configured(folder: Path, state: StateAddress, port: int) -> Config:
    settings = config(folder)
    places = {"database": state.database, "blobs": state.bucket, "port": port}
    return settings.model_copy(update={"server": settings.server.model_copy(update=places)})


@asynccontextmanager
async def serving(settings: Config) -> AsyncIterator[tuple[asyncio.Queue[str], asyncio.Event]]:
    """The lines that a server announces, and what stops it."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(daemon.serve(settings, lines.put_nowait, stop))
        yield lines, stop
        stop.set()


async def fetched(url: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, (await answer.read()).decode(errors="replace")


async def test_a_standby_tells_operators_who_leads_and_serves_clients_once_it_leads(
    tmp_path: Path, cluster: Cluster, gateway: Gateway
) -> None:
    state = elsewhere(tmp_path / "one" / "data", cluster, gateway)
    opened(state.folder, state).close()
    (port,) = free_ports(1)

    async with serving(configured(tmp_path / "one", state, port)) as (of_first, stop_first):
        assert "ready, clients at" in await of_first.get()
        async with serving(configured(tmp_path / "two", state, port)) as (of_second, _):
            line = await of_second.get()
            admin = line.rpartition(" ")[2]
            health, ready = await fetched(f"{admin}/healthz"), await fetched(f"{admin}/readyz")
            tasks = await fetched(f"{admin}/v1/admin/tasks", ADMIN_TOKEN)
            figures = [await fetched(f"{admin}/metrics", token) for token in (ADMIN_TOKEN, READ_TOKEN, "none", "")]
            stop_first.set()
            now = await of_second.get()
            serves = await fetched(f"http://127.0.0.1:{port}/readyz")

    leader = re.findall("fedlens: standby, (fedlens .* leads, term 2), operators at", line)
    assert len(leader) == 1
    assert health == (200, "ok\n")
    assert ready == (503, f"standby: {leader[0]}\n")
    assert tasks[0] == 503
    assert f"this server is a standby: {leader[0]}" in tasks[1]
    assert [status for status, _ in figures] == [200, 200, 401, 401]
    assert "fedlens_standby 1.0" in figures[1][1]
    assert "ready, clients at" in now
    assert serves == (200, "ready\n")


async def test_a_server_that_may_no_longer_lead_answers_nothing_from_memory(server: Server) -> None:
    client = await server.client(1)
    server.service.store.lead._certain_until = -inf

    stranger = await server.request("POST", f"{server.url}/v1/check-in", Authorization=f"Bearer {'A' * 43}")
    nothing = await server.request("GET", f"{server.url}/v1/nothing")
    asked = await client.send("POST", "/v1/check-in", b"\x08\x01")
    tasks = await server.admin("GET", "/v1/admin/tasks")
    health, ready = [await server.request("GET", f"{server.url}/{path}") for path in ("healthz", "readyz")]

    assert {answer.outcome for answer in (stranger, nothing, asked, tasks)} == {(503, "unavailable")}
    assert {answer.error.retry_after_ms for answer in (stranger, nothing, asked, tasks)} == {2000}
    assert (health.status, ready.status) == (200, 503)
    assert b"does not know whether it still leads" in ready.body


async def test_what_was_decided_before_the_lead_came_into_doubt_is_not_told(server: Server) -> None:
    client = await server.client(1)
    request = check_in_pb2.CheckInRequest(protocol=1, num_examples=10, hold_ms=30_000).SerializeToString()
    held = asyncio.create_task(client.send("POST", "/v1/check-in", request))
    await until(lambda: len(server.service.polls) == 1)

    server.service.store.lead._certain_until = -inf
    server.service.polls.stop()

    assert (await held).outcome == (503, "unavailable")


@pytest.mark.parametrize("shared", [True, False])
async def test_a_second_server_that_can_be_no_standby_ends_with_one_line(
    tmp_path: Path, cluster: Cluster, gateway: Gateway, shared: bool
) -> None:
    state = elsewhere(tmp_path / "one" / "data", cluster, gateway if shared else None)
    opened(state.folder, state).close()
    other = "one" if shared else "two"
    told = "data is in use by another server" if shared else r"leads, term 2; a standby needs server\.blobs"

    async with serving(configured(tmp_path / "one", state, 0)) as (of_first, _):
        await of_first.get()
        with pytest.raises(StoreUnusable, match=told) as caught:
            await daemon.serve(configured(tmp_path / other, state, 0), lambda line: None)

    assert "\n" not in str(caught.value)
