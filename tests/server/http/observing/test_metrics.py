"""What a scrape of a running server gives."""

import asyncio
import errno
import os
import re
from hashlib import sha256
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedlens_proto.v1 import admin_pb2
from tests.server.bundles import tiny_bundle
from tests.server.http.dashboard.visitors import Visitor, logged_in
from tests.server.http.running import Server, connected, head, running, trained, until, update
from tests.server.telemetry.logs import logged


async def scraped(server: Server) -> dict[tuple[str, ...], float]:
    """Values by name and labels, in the order of the labels' names."""
    answer = await server.admin("GET", "/metrics")
    assert answer.status == 200, answer
    families = text_string_to_metric_families(answer.body.decode())
    return {
        (each.name, *(each.labels[name] for name in sorted(each.labels))): each.value
        for family in families
        for each in family.samples
    }


async def test_a_scrape_counts_what_has_happened(server: Server) -> None:
    await server.create(tiny_bundle(3), population=2, rounds=2)
    clients = [await server.client(1), await server.client(2)]
    assignments = [await client.assignment() for client in clients]
    await clients[0].upload(assignments[0])
    await clients[1].check_in()
    await clients[0].enrol("not-a-token")
    before = await scraped(server)
    await clients[1].upload(assignments[1])
    await clients[1].assignment()
    after = await scraped(server)

    wanted = {
        ("fedlens_requests_total", "ok", "POST /v1/check-in"): 3.0,
        ("fedlens_requests_total", "unauthorised", "POST /v1/clients"): 1.0,
        ("fedlens_request_seconds_count", "POST /v1/clients"): 3.0,
        ("fedlens_check_ins_total", "assignment"): 3.0,
        ("fedlens_clients", "trainer"): 2.0,
        ("fedlens_present_clients",): 2.0,
        ("fedlens_tasks", "running", "demo"): 1.0,
        ("fedlens_round", "demo"): 1.0,
        ("fedlens_round_members", "reported", "demo"): 1.0,
        ("fedlens_members_total", "given", "demo"): 2.0,
        ("fedlens_members_total", "reported", "demo"): 1.0,
        ("fedlens_ready",): 1.0,
    }
    assert {key: before.get(key) for key in wanted} == wanted
    assert before[("fedlens_received_bytes_total", "PUT /v1/tasks/{task}/rounds/{round}/update")] > 100
    assert before[("fedlens_commit_seconds_count",)] > 3
    assert before[("fedlens_rounds_total", "committed", "demo")] == 0.0
    assert after[("fedlens_rounds_total", "committed", "demo")] == 1.0
    assert after[("fedlens_round", "demo")] == 2.0
    assert after[("fedlens_aggregation_seconds_count",)] == 1.0
    assert after[("fedlens_disk_free_bytes",)] > 0


async def test_metrics_need_the_token_and_are_not_on_the_address_of_clients(server: Server) -> None:
    without = await server.request("GET", f"{server.admin_url}/metrics")
    wrong = await server.admin("GET", "/metrics", token="wrong")
    of_clients = await server.request("GET", f"{server.url}/metrics", Authorization="Bearer token-of-the-operators")

    assert [answer.status for answer in (without, wrong, of_clients)] == [401, 401, 404]
    assert without.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert without.body.startswith(b"the request needs an Authorization header")


@pytest.mark.parametrize("features", [3, 40_000])  # a blob in the database, a blob in a file
@pytest.mark.parametrize("accel_location", [None, "/of-nginx/"])
async def test_the_bytes_of_blobs_are_counted_whoever_sends_them(
    tmp_path: Path, features: int, accel_location: str | None
) -> None:
    async with running(tmp_path, accel_location=accel_location, trusted_proxies=["127.0.0.1"]) as server:
        client, _ = await server.member(features)
        initial = tiny_bundle(features).initial
        path = f"blobs/{sha256(initial).hexdigest()}"
        await client.send("GET", f"/v1/{path}")
        await client.send("HEAD", f"/v1/{path}")
        await client.send("GET", f"/v1/{path}", Range="bytes=0-9")
        await server.admin("GET", f"/v1/admin/{path}")
        found = await scraped(server)

    assert found["fedlens_sent_bytes_total", "GET /v1/blobs/{sha256}"] == len(initial) + 10
    assert found["fedlens_sent_bytes_total", "HEAD /v1/blobs/{sha256}"] == 0
    assert found["fedlens_sent_bytes_total", "GET /v1/admin/blobs/{sha256}"] == len(initial)


async def test_the_question_whether_a_part_is_there_is_no_refusal(server: Server) -> None:
    with logged("human") as log:
        answer = await server.admin("HEAD", f"/v1/admin/parts/{'0' * 64}")

    assert (answer.status, str(log)) == (404, "")
    requests = {key[1:]: count for key, count in (await scraped(server)).items() if key[0] == "fedlens_requests_total"}
    assert requests == {("ok", "HEAD /v1/admin/parts/{sha256}"): 1.0}


async def test_a_refusal_has_its_code_whether_a_program_reads_it_or_a_person(server: Server) -> None:
    client, assignment = await server.member()
    path = f"/v1/blobs/{assignment.sets[0].sha256.hex()}"
    stranger, operator = Visitor(server), await logged_in(server)

    answers = [
        await client.send("GET", path, Range="bytes=999999-"),
        await stranger.log_in("wrong"),
        await stranger.post("/login", {"Origin": "https://elsewhere.example"}),
        await stranger.get("/?part", HX_Request="true"),
        await operator.get("/tasks/none"),
        await operator.post("/tasks/1/settings", rounds="many"),
        await operator.post("/tokens/none/revoke"),
        await operator.post("/tokens/new", role="nobody"),
        await operator.get("/static/0/none.css"),
    ]

    found = await scraped(server)
    codes = {key[1:]: count for key, count in found.items() if key[0] == "fedlens_requests_total" and key[1] != "ok"}
    assert [answer.status for answer in answers] == [416, 401, 403, 401, 404, 400, 404, 400, 404]
    assert codes == {
        ("wrong-range", "GET /v1/blobs/{sha256}"): 1.0,
        ("unauthorised", "POST /dashboard/login"): 1.0,
        ("forbidden", "POST /dashboard/login"): 1.0,
        ("unauthorised", "GET /dashboard/"): 1.0,
        ("unknown", "GET /dashboard/tasks/{task}"): 1.0,
        ("malformed", "POST /dashboard/tasks/{task}/settings"): 1.0,
        ("unknown", "POST /dashboard/{kind}/{subject}/{action}"): 1.0,
        ("malformed", "POST /dashboard/tokens/new"): 1.0,
        ("unknown", "GET /dashboard/static/{digest}/{name}"): 1.0,
    }


async def test_a_request_whose_connection_ends_before_its_answer_is_no_success(server: Server) -> None:
    client, clients = await server.client(1), server.service.servers["clients"]
    before = clients.requests_count

    async with connected(server.url) as (_, writer):
        writer.write(head(client.bearer, "/v1/check-in", 100, method="POST"))
        await until(lambda: clients.requests_count > before)
    await until(lambda: "POST /v1/check-in" in server.service.metrics.served)

    assert server.service.metrics.served["POST /v1/check-in"].codes == {"gone": 1}


async def test_a_task_has_the_time_of_its_first_round_once_that_is_open(server: Server) -> None:
    await server.create(tiny_bundle(3), population=1)
    waiting = await scraped(server)
    await (await server.client(1)).assignment()

    key = ("fedlens_first_round_timestamp_seconds", "demo")
    assert (waiting.get(key), (await scraped(server))[key]) == (None, server.clock.now())


async def test_the_age_of_a_round_does_not_follow_its_deadline(server: Server) -> None:
    await server.member(deadline_s=3_600)
    server.clock.wind(100.0)
    changed = admin_pb2.ChangeTaskRequest(protocol=1, settings_json='{"deadline_s": 7200}').SerializeToString()

    answer = await server.admin("POST", "/v1/admin/tasks/demo/settings", changed)

    assert answer.status == 200, answer
    assert (await scraped(server))["fedlens_round_seconds", "demo"] == 100.0


async def test_the_count_of_committed_rounds_does_not_fall_when_rounds_are_undone(server: Server) -> None:
    client, assignment = await server.member()
    for _ in range(2):
        await client.upload(assignment)
        assignment = await client.assignment()

    asked = admin_pb2.RoundRequest(protocol=1, round=1).SerializeToString()
    answer = await server.admin("POST", "/v1/admin/tasks/demo/rollback", asked)

    assert answer.status == 200, answer
    found = await scraped(server)
    # The first two, of which one is undone, and the third, which was open.
    assert found["fedlens_rounds_total", "committed", "demo"] == 2.0
    assert found["fedlens_rounds_total", "abandoned", "demo"] == 1.0


async def test_the_time_of_the_last_commit_stays_when_rounds_are_undone(server: Server) -> None:
    client, assignment = await server.member()
    for _ in range(2):
        server.clock.wind(100.0)
        await client.upload(assignment)
        assignment = await client.assignment()
    before = await scraped(server)

    asked = admin_pb2.RoundRequest(protocol=1, round=1).SerializeToString()
    answer = await server.admin("POST", "/v1/admin/tasks/demo/rollback", asked)

    assert answer.status == 200, answer
    key = ("fedlens_last_commit_timestamp_seconds", "demo")
    assert (before[key], (await scraped(server))[key]) == (server.clock.now(), server.clock.now())


async def test_requests_that_the_server_failed_to_serve_are_counted_from_zero_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    client, assignment = await server.member(40_000)
    body = update(assignment, trained(40_000))
    before = await scraped(server)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        answer = await client.upload(assignment, body)
    after = await scraped(server)

    assert answer.status == 507, answer
    codes = ("internal", "storage-full")
    found = [[scrape["fedlens_errors_total", code] for code in codes] for scrape in (before, after)]
    assert found == [[0.0, 0.0], [0.0, 1.0]]


async def test_labels_come_from_no_stranger(server: Server) -> None:
    for n in range(3):
        await server.request("GET", f"{server.url}/v1/{n}")
        await server.request("PATCH", f"{server.url}/v1/check-in")

    found = await scraped(server)

    assert found["fedlens_requests_total", "unknown", "unknown"] == 6.0
    assert [key for key in found if "PATCH" in str(key)] == []


async def test_a_server_on_a_full_disk_says_that_it_is_not_ready(tmp_path: Path) -> None:
    async with running(tmp_path, min_free_bytes=1 << 60) as server:
        ready, healthy = [await server.request("GET", f"{server.url}/{path}") for path in ("readyz", "healthz")]
        found = await scraped(server)

    assert (ready.status, healthy.status) == (503, 200)
    assert re.fullmatch(
        rb"the disk of server\.data has \d+ free bytes, less than 1152921504606846976 \(limits\.min_free_bytes\)\n",
        ready.body,
    )
    assert found["fedlens_ready",] == 0.0


async def test_a_server_that_can_write_no_more_says_so(server: Server) -> None:
    def fault() -> None:
        raise RuntimeError("the view would no longer be what the database holds")

    spoilt = server.service.store.submit(lambda transaction: transaction.after_commit(fault))
    with pytest.raises(RuntimeError):
        await asyncio.wrap_future(spoilt)
    ready = await server.request("GET", f"{server.url}/readyz")

    assert (ready.status, ready.body[:36]) == (503, b"the state can no longer be written; ")


async def test_a_task_that_an_operator_paused_is_seen_as_paused(server: Server) -> None:
    await server.create(tiny_bundle(3), population=1)
    await server.client(1)

    await server.admin("POST", "/v1/admin/tasks/demo/pause")

    assert {key for key in await scraped(server) if key[0] == "fedlens_tasks"} == {("fedlens_tasks", "paused", "demo")}
