"""Starting, stopping, and failing without telling the world how."""

import asyncio
import logging
import threading
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from fedlens_proto.v1 import error_pb2
from fedlens_server.http.app import create_app
from fedlens_server.http.responses import errors_as_messages
from fedlens_server.http.service import SERVICE, Service, ServiceState
from fedlens_server.store import Store
from tests.server.fakes import ManualClock
from tests.server.http.running import Client, Server, config, running, serving, trained, until, update


async def fetched(url: str) -> tuple[int, bytes]:
    """Status and body."""
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.read()


async def test_a_server_that_is_up_says_so_on_both_addresses(server: Server) -> None:
    answers = [
        await server.request("GET", f"{url}{path}")
        for url in (server.url, server.admin_url)
        for path in ("/healthz", "/readyz")
    ]

    assert [(answer.status, answer.body) for answer in answers] == [(200, b"ok\n"), (200, b"ready\n")] * 2


@pytest.mark.parametrize("state", [ServiceState.STARTING, ServiceState.STOPPING])
async def test_a_server_that_is_not_ready_answers_503(server: Server, state: ServiceState) -> None:
    client = await server.client(1)
    server.service.state = state

    checked_in = await client.send("POST", "/v1/check-in", b"\x08\x01")
    answers = [checked_in, await client.enrol(), await server.admin("GET", "/v1/admin/tasks")]
    ready, health = [await server.request("GET", f"{server.url}/{path}") for path in ("readyz", "healthz")]

    assert {answer.outcome for answer in answers} == {(503, "unavailable")}
    assert {answer.error.retry for answer in answers} == {error_pb2.RETRY_LATER}
    assert (ready.status, ready.body) == (503, f"{state.value}\n".encode())
    assert health.status == 200


async def test_requests_that_come_while_the_state_is_read_are_told_to_come_back(tmp_path: Path) -> None:
    settings = config(tmp_path)
    store = Store.open(settings.server.data)
    gate = threading.Event()
    store.submit(lambda _: gate.wait())  # loading ends with a sweep, which waits for its turn
    app = create_app(settings, ManualClock(), store)
    try:
        async with serving(app) as url:
            status, _ = await fetched(f"{url}/readyz")
            gate.set()
            await app[SERVICE].ready()
    finally:
        gate.set()
        store.close()

    assert status == 503


async def test_a_server_that_has_stopped_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    async with running(tmp_path) as server:
        client, assignment = await server.member(max_update_norm=1e9)
        assert (await client.upload(assignment)).status == 200

    # The event loop keeps threads of its own until it is closed.
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert [name for name in left if name.startswith("fedlens")] == []


async def test_an_update_on_its_way_in_is_finished_before_the_server_stops(tmp_path: Path) -> None:
    features = 200_000
    async with running(tmp_path) as server:
        client, assignment = await server.member(features)
        body = update(assignment, trained(features))
        go_on = asyncio.Event()

        async def slowly():  # type: ignore[no-untyped-def]
            yield body[:1_000_000]
            await go_on.wait()
            yield body[1_000_000:]

        upload = asyncio.create_task(client.upload(assignment, slowly(), Content_Length=str(len(body))))
        await until(lambda: bool(server.temporary_files()))
        server.service.stop_accepting()
        go_on.set()

        assert (await upload).status == 200

    async with running(tmp_path) as server:
        again = Client(server, client.secret)
        assert (await again.upload(assignment, body)).status == 200


async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client, assignment = await server.member(population=2)
        other = await server.client(2)
        receipt = await client.upload(assignment)

    async with running(tmp_path) as server:
        again = await Client(server, client.secret).upload(assignment)
        still = await Client(server, other.secret).assignment()

        assert again.body == receipt.body
        assert (still.round, still.seed) == (assignment.round, (await Client(server, other.secret).assignment()).seed)


async def test_an_unexpected_error_is_logged_and_answered_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_: web.Request) -> web.Response:
        raise ZeroDivisionError("something inside")

    app = web.Application(middlewares=[errors_as_messages])
    app.router.add_get("/v1/broken", broken)
    async with serving(app) as url:
        status, body = await fetched(f"{url}/v1/broken")

    error = error_pb2.Error.FromString(body)
    assert (status, error.code, error.retry) == (500, "internal", error_pb2.RETRY_LATER)
    assert b"something inside" not in body and b"Traceback" not in body
    assert [record.levelno for record in caplog.records if record.exc_info] == [logging.ERROR]
    assert "something inside" in caplog.text


async def test_building_an_application_starts_nothing(tmp_path: Path) -> None:
    settings = config(tmp_path)
    store = Store.open(settings.server.data)
    try:
        app = create_app(settings, ManualClock(), store)

        assert isinstance(app[SERVICE], Service)
        assert app[SERVICE].state is ServiceState.STARTING
        assert len(asyncio.all_tasks()) == 1
    finally:
        store.close()
