"""The lines of a small federation, from its first task to its end."""

import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedlens_proto.v1 import update_pb2
from fedlens_server.http.observing import requests
from fedlens_server.store import writing_thread
from fedlens_server.telemetry.log_lines import LogFormat
from tests.server.bundles import tiny_bundle
from tests.server.http.running import (
    ADMIN_TOKEN,
    BAN,
    EVALUATOR_TOKEN,
    READ_TOKEN,
    TRAINER_TOKEN,
    Client,
    Server,
    connected,
    round_path,
    running,
    until,
    update,
)
from tests.server.telemetry.logs import logged


async def federation(server: Server) -> list[Client]:
    """Four members of a round: two report, one fails, one sends nonsense; one of them is revoked, another forgotten."""
    await server.create(tiny_bundle(3), population=4, rounds=1, min_reports=2)
    clients = [await server.client(index) for index in range(1, 5)]
    assignments = [await client.assignment() for client in clients]
    failure = update_pb2.FailureRequest(protocol=1, reason=update_pb2.FAILURE_REASON_INTERNAL, detail="2 GB")
    await clients[2].send("POST", f"{round_path(assignments[2])}/failure", failure.SerializeToString())
    await clients[3].upload(assignments[3], update(assignments[3], b"nonsense"))
    await clients[0].upload(assignments[0])
    await clients[1].upload(assignments[1])
    assert (await clients[0].check_in(hold_ms=10_000)).WhichOneof("result") == "finished"
    await server.admin("POST", f"/v1/admin/clients/{clients[0].id.hex()}/ban", BAN)
    await clients[0].send("POST", "/v1/check-in", b"\x08\x01")
    await clients[1].send("DELETE", "/v1/clients/self", b"\x08\x01")
    await clients[0].enrol("not-a-token")
    async with connected(server.url) as (reader, writer):
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        await reader.read()
    return clients


async def test_people_read_a_line_for_each_thing_that_happens(tmp_path: Path) -> None:
    with logged("human") as log:
        async with running(tmp_path) as server:
            clients = await federation(server)

    ids = [client.id[:6].hex() for client in clients]
    # A state elsewhere adds it.
    told = [line for line in str(log).splitlines() if "lead-taken" not in line]
    lines = [re.sub(r"^\S+ (INFO|WARNING) | endpoint=.*", "", line) for line in told]
    fault = """reason="upload 'weights': not a blob: it starts with b'nonsense', not with b'FEDLENS\\\\x00'\""""
    counts = "task=demo round=1 reported=2 pending=0 failures=2"
    assert lines == [
        "state-read tasks=0 open_rounds=0 updates=0",
        'operated by=admin action="task create" subject=demo detail="fedavg, rounds: 1"',
        *(f"enrolled role=trainer token=trainers client={each}" for each in ids),
        "task-started task=demo",
        "round-opened task=demo round=1 phase=train members=4",
        f'failed task=demo round=1 client={ids[2]} reason="internal: 2 GB"',
        f"quarantined task=demo round=1 client={ids[3]} {fault}",
        f"refused code=update-invalid {fault} client={ids[3]}",
        f"round-closed {counts}",
        f"round-committed {counts} seconds=0.0",
        "task-ended task=demo state=finished committed=1",
        f'operated by=admin action="client ban" subject={clients[0].id.hex()} detail=noise',
        f'refused code=forbidden reason="this client is banned by an operator" client={ids[0]}',
        f"forgotten client={ids[1]}",
        f"""refused code=unauthorised reason="the enrolment token is none of this server's" client={ids[0]}""",
        "not-http error=BadHttpMethod address=127.0.0.1",
    ]


async def test_a_disk_that_becomes_nearly_full_and_has_room_again_is_told_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(free=100)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: disk)
    with logged("human") as log:
        async with running(tmp_path, min_free_bytes=100) as server:

            def is_told(event: str) -> bool:
                server.clock.wind(60)
                return event in str(log)

            for free, event in ((99, "disk-nearly-full"), (100, "disk-has-room"), (98, "free_bytes=98")):
                disk.free = free
                await until(partial(is_told, event))

    assert re.findall(r"(\w+) (disk-.*)", str(log)) == [
        ("WARNING", "disk-nearly-full free_bytes=99 min_free_bytes=100"),
        ("INFO", "disk-has-room free_bytes=100 min_free_bytes=100"),
        ("WARNING", "disk-nearly-full free_bytes=98 min_free_bytes=100"),
    ]


async def test_a_line_that_the_writing_thread_writes_names_its_request(tmp_path: Path) -> None:
    with logged("json") as log:
        async with running(tmp_path) as server:
            answer = await server.admin("POST", "/v1/admin/tasks", b"")
            client = Client(server, bytes(32))
            enrolled = await client.enrol()

    first, second = map(json.loads, str(log).splitlines()[-2:])
    where = {"endpoint": "POST /v1/clients", "request": enrolled.headers["X-Request-ID"], "address": "127.0.0.1"}
    assert second.items() >= {"event": "enrolled", "client": client.id[:6].hex(), **where}.items()
    assert (first["code"], first["request"]) == ("malformed", answer.headers["X-Request-ID"])


async def test_operators_changes_and_refusals_name_the_operator(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client = (await server.client(1)).id.hex()
        await server.create(tiny_bundle(3), release="manual")
        with logged("json") as log:
            for method, path in (
                ("POST", f"clients/{client}/ban"),
                ("POST", f"clients/{client}/unban"),
                ("POST", "tokens/trainers/revoke"),
                ("POST", "tasks/demo/pause"),
                ("POST", "tasks/demo/resume"),
                ("POST", "tasks/demo/stop"),
                ("DELETE", "tasks/demo"),
            ):
                assert (await server.admin(method, f"/v1/admin/{path}", BAN)).status < 300
            await server.admin("POST", "/v1/admin/tasks/demo/stop")
            await server.admin("POST", "/v1/admin/tasks/demo/stop", token=READ_TOKEN)

    lines = list(map(json.loads, str(log).splitlines()))
    assert [(line["by"], line["action"], line["subject"]) for line in lines if line["event"] == "operated"] == [
        ("admin", "client ban", client),
        ("admin", "client unban", client),
        ("admin", "token revoke", "trainers"),
        ("admin", "task pause", "demo"),
        ("admin", "task resume", "demo"),
        ("admin", "task stop", "demo"),
        ("admin", "task delete", "demo"),
    ]
    refused = [(line["by"], line["code"]) for line in lines if line["event"] == "refused"]
    assert refused == [("admin", "unknown"), ("onlooker", "forbidden")]
    assert {line["by"] for line in lines} == {"admin", "onlooker"}


async def test_a_server_that_starts_again_says_what_it_found(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        client, assignment = await server.member(population=2)
        await server.create(tiny_bundle(3), "waits", population=9)
        await client.upload(assignment)

    with logged("human") as log:
        async with running(tmp_path):
            pass

    assert "INFO state-read tasks=2 open_rounds=1 updates=1\n" in str(log)


async def test_slow_requests_and_slow_commits_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The writing thread answers before it tells how long a commit took, so the log is read once the server has ended.
    with logged("json") as log:
        async with running(tmp_path) as server:
            monkeypatch.setattr(requests, "SLOW_S", 0.0)
            monkeypatch.setattr(writing_thread, "SLOW_S", 0.0)
            answer = await Client(server, bytes(32)).enrol()

    found = {line["event"]: line for line in map(json.loads, str(log).splitlines())}
    assert found["slow-request"]["request"] == answer.headers["X-Request-ID"]
    # The enrolment; the server's look for old receipts at its start may share the commit.
    assert found["slow-write"]["operations"] in (1, 2)
    assert found["slow-write"]["seconds"] > 0


@pytest.mark.parametrize("form", ["human", "json"])
async def test_no_line_holds_a_secret_or_a_path_that_was_sent(tmp_path: Path, form: LogFormat) -> None:
    with logged(form) as log:
        async with running(tmp_path) as server:
            clients = await federation(server)
            answer = await server.request("GET", f"{server.url}/v1/{clients[0].bearer}")

    sent = [ADMIN_TOKEN, TRAINER_TOKEN, EVALUATOR_TOKEN, "not-a-token", *(client.bearer[7:] for client in clients)]
    assert [secret for secret in sent if secret.rstrip("=") in str(log)] == []
    assert (answer.status, "unknown" in str(log)) == (404, True)
