"""Each attack of docs/hostile-clients.md, beside honest clients whose rounds go on, with the limit that must hold."""

import asyncio
import os
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, closing, suppress
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlens_proto import keyed_hash
from fedlens_proto.v1 import admin_pb2, admission_pb2, assignment_pb2, check_in_pb2
from tests.integration.hostile.honest_rounds import CLIENTS, GOAL, TASK, create, honest_rounds
from tests.integration.hostile.plain_server import PlainServer, Reply, address, connected, exchange, plain_server, reply
from tests.integration.hostile.seed_requests import LARGE, Subject
from tests.server.bundles import tiny_bundle
from tests.server.http.running import enrolment, head, round_path, trained, update

pytestmark = pytest.mark.slow

TRAINER = admission_pb2.TOKEN_ROLE_TRAINER
CHECK_IN, UPDATE = "POST /v1/check-in", "PUT /v1/tasks/{task}/rounds/{round}/update"
HOUR_MS = 3_600_000
BROKEN = (asyncio.IncompleteReadError, ConnectionError)


class Stranger(Subject):
    """A client that keeps to the protocol only as far as its attack needs that."""

    def __init__(self, server: PlainServer, index: int, token: str) -> None:
        super().__init__(sha256(f"stranger {index}".encode()).digest(), token)
        self._server = server

    def request(self, method: str, path: str, body: bytes) -> bytes:
        return head(self.bearer, path, len(body), method=method) + body

    @property
    def enrolment(self) -> bytes:
        return self.request("POST", "/v1/clients", enrolment(self.token, keyed_hash.client_id(self.secret)))

    async def send(self, method: str, path: str, body: bytes) -> Reply:
        return await exchange(self._server.process.url, self.request(method, path, body), method)

    async def check_in(self, task: int = 0, hold_ms: int = 0) -> check_in_pb2.CheckInResponse:
        request = check_in_pb2.CheckInRequest(protocol=1, num_examples=10, task=task, hold_ms=hold_ms)
        answer = await self.send("POST", "/v1/check-in", request.SerializeToString())
        assert answer.status == 200, answer
        return check_in_pb2.CheckInResponse.FromString(answer.body)

    async def place(self, task: int = 0) -> assignment_pb2.Assignment:
        """An assignment, however often the others come first."""
        while not (response := await self.check_in(task, hold_ms=1000)).HasField("assignment"):
            assert response.HasField("wait"), response
        return response.assignment


async def strangers(server: PlainServer, count: int) -> list[Stranger]:
    """So many enrolled clients."""
    made = await asyncio.to_thread(server.admin.create_token, "strangers", TRAINER, max_uses=count)
    found = [Stranger(server, index, made.secret) for index in range(count)]
    for each in found:
        assert (await exchange(server.process.url, each.enrolment)).status == 200
    return found


async def flood(url: str, requests: Iterable[bytes], connections: int = 16) -> Counter[int]:
    """Send requests as fast as they are answered, from several addresses; the number of answers by status."""
    rest, statuses = iter(requests), Counter[int]()

    async def some(index: int) -> None:
        async with connected(url, address(index)) as (reader, writer):
            for raw in rest:
                writer.write(raw)
                statuses[(await reply(reader)).status] += 1

    await asyncio.gather(*(some(index) for index in range(connections)))
    return statuses


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PlainServer]:
    with plain_server(tmp_path / "server") as started:
        yield started


async def test_one_token_lets_in_only_its_clients_a_minute_however_fast_they_come(server: PlainServer) -> None:
    made = await asyncio.to_thread(server.admin.create_token, "leaked", TRAINER, max_uses=10**6, per_minute=100)
    enrolments = [Stranger(server, index, made.secret).enrolment for index in range(8_000)]

    async with honest_rounds(server) as honest:
        began = time.monotonic()
        attack = asyncio.create_task(flood(server.process.url, enrolments))
        await honest.go_on()
        statuses = await attack
        seconds = time.monotonic() - began

    figures(f"{statuses[200]} of 8000 enrolled in {seconds:.1f} s")
    assert statuses[200] <= 100 + ceil(seconds * 100 / 60)
    assert statuses[200] + statuses[429] == 8_000


async def test_a_quarantined_client_gets_no_further_place(server: PlainServer) -> None:
    poison = trained()[:-4] + np.array([np.nan], "<f4").tobytes()
    async with honest_rounds(server) as honest:
        (poisoner,) = await strangers(server, 1)
        assignment = await poisoner.place()
        refused = await poisoner.send("PUT", f"{round_path(assignment)}/update", update(assignment, poison))

        attack = asyncio.create_task(_come_again(poisoner, 200))
        await honest.go_on(5)
        waits = await attack

    figures(f"{sum(wait is None for wait in waits)} places in {len(waits)} check-ins")
    assert refused.status == 422
    assert {wait and wait.reason for wait in waits} == {check_in_pb2.WAIT_REASON_SITS_OUT}
    assert min(wait.retry_after_ms for wait in waits if wait) > 0.9 * HOUR_MS


async def _come_again(client: Stranger, times: int) -> list[check_in_pb2.Wait | None]:
    found = [await client.check_in() for _ in range(times)]
    return [response.wait if response.HasField("wait") else None for response in found]


async def test_300_slow_uploads_of_one_member_keep_nobody_else_from_uploading(server: PlainServer) -> None:
    # In a task of its own the round of the slow member goes on, however many rounds the others end.
    await create(server, "slow", tiny_bundle(LARGE), goal=2)
    (slow,) = await strangers(server, 1)
    (task,) = await asyncio.to_thread(server.admin.tasks)
    assignment = await slow.place(task.id)
    body = update(assignment, trained(LARGE))
    begun = slow.request("PUT", f"{round_path(assignment)}/update", body)[: -len(body) // 2]

    async with honest_rounds(server, LARGE) as honest, AsyncExitStack() as open_ones:
        attack = asyncio.create_task(honest.go_on())
        streams = [await open_ones.enter_async_context(connected(server.process.url, address(i))) for i in range(300)]
        for _, writer in streams:
            writer.write(begun)
        await attack
        await honest.go_on()
        cut_off = await _cut_off(streams, 299)
        received = _value(await server.metrics(), "fedlens_uploads")
        codes = await server.answers(UPDATE)

    figures(f"{cut_off} of 300 cut off, {received} still received; answers to updates {codes}")
    assert received <= 1 + CLIENTS
    assert codes.keys() == {"ok", "gone"}


async def test_idle_connections_until_the_descriptors_end_keep_nobody_else_out(tmp_path: Path) -> None:
    with plain_server(tmp_path / "server", files=256) as server:
        async with honest_rounds(server, LARGE) as honest, AsyncExitStack() as open_ones:
            attack = asyncio.create_task(honest.go_on(10))
            # While the server is busy connections wait, and then all come at once.
            os.kill(server.process.pid, signal.SIGSTOP)
            opening = (connected(server.process.url, address(index)) for index in range(400))
            opened = [asyncio.create_task(open_ones.enter_async_context(each)) for each in opening]
            await asyncio.wait(opened, timeout=1)  # no more than the backlog holds
            os.kill(server.process.pid, signal.SIGCONT)
            streams = await asyncio.gather(*opened)
            for _, writer in streams[::2]:
                writer.write(b"GET /healthz HTTP/1.1\r\n")
            await attack
            await honest.go_on(10)
            cut_off = await _cut_off(streams, 128)  # others still wait to be accepted, or hold one of the 128 places
            descriptors = server.footprint().descriptors
            codes = await server.answers(UPDATE), await server.answers(CHECK_IN)

        figures(f"{cut_off} of 400 cut off, {descriptors} of 256 descriptors; honest answers {codes}")
        assert cut_off >= 128
        assert descriptors < 200
        assert {code for each in codes for code in each} == {"ok"}
        assert "Too many open files" not in server.log


async def _cut_off(streams: list[Any], at_least: int) -> int:
    """The number of connections that the server has closed, once that are so many."""
    ends = [asyncio.create_task(_end(reader)) for reader, _ in streams]
    async with asyncio.timeout(30):
        for end in asyncio.as_completed(ends):
            await end
            if sum(each.done() for each in ends) >= at_least:
                break
    closed = sum(each.done() for each in ends)
    for each in ends:
        each.cancel()
    return closed


async def _end(reader: asyncio.StreamReader) -> None:
    with suppress(*BROKEN):
        await reader.read()


async def test_places_that_are_taken_and_never_used_are_free_again_and_their_takers_come_last(
    server: PlainServer,
) -> None:
    # Honest clients have no rest, and on a busy machine need a second for a place. Who has left two places unused gets
    # one that was free for ten minutes: no round waits for that here.
    async with honest_rounds(server, member_deadline_s=2, patience_s=600) as honest:
        takers = await strangers(server, 8)
        began = time.monotonic()
        attack = [asyncio.create_task(_take_places(each)) for each in takers]
        await honest.go_on(10)
        seconds = time.monotonic() - began
        await honest.go_on(20)
        at_last = time.monotonic() - began - seconds
        for each in attack:
            each.cancel()
        await asyncio.gather(*attack, return_exceptions=True)
        shown = await asyncio.to_thread(server.admin.show, TASK)

    missed = Counter(
        member.client_id.hex()
        for each in shown.rounds
        for member in each.members
        if member.state == admin_pb2.MEMBER_STATE_MISSED
    )
    figures(f"places missed {sorted(missed.values())}; 10 rounds in {seconds:.1f} s, 20 more in {at_last:.1f} s")
    assert missed.keys() <= {each.id for each in takers}
    assert max(missed.values()) <= 2


async def _take_places(client: Stranger) -> None:
    """Take every place that there is."""
    while True:
        response = await client.check_in(hold_ms=1000)
        if response.HasField("assignment"):
            await asyncio.sleep(0.05)  # or it would be told of the same place again and again


@pytest.mark.long
async def test_garbage_from_12000_connections_leaves_few_lines_in_the_log(server: PlainServer) -> None:
    async with honest_rounds(server) as honest:
        before = len(server.log)
        began = time.monotonic()
        attack = asyncio.create_task(_garbage(server, 12_000))
        await honest.go_on(5)
        await attack
        seconds = time.monotonic() - began
        lines = [line for line in server.log[before:].splitlines() if "not-http" in line]

    written = sum(len(line) + 1 for line in lines)
    figures(f"{written} bytes in {len(lines)} lines in {seconds:.1f} s")
    assert written < 50_000 * ceil(seconds / 60)


async def _garbage(server: PlainServer, count: int) -> None:
    numbers = iter(range(count))

    async def some() -> None:
        for index in numbers:
            async with connected(server.process.url, address(index)) as (reader, writer):
                writer.write(b"garbage\r\n\r\n")
                assert (await reply(reader)).status == 400

    await asyncio.gather(*(some() for _ in range(32)))


async def test_rows_of_members_are_gone_when_their_retention_is_over(tmp_path: Path) -> None:
    hour_s, day_s = 0.1, 2.4
    hours = ("--hour-lasts", str(hour_s))
    with plain_server(tmp_path / "server", options=hours, server="retention_days = 1") as server:
        async with honest_rounds(server, member_deadline_s=10**6, deadline_s=10**6) as honest:
            began = time.monotonic()
            days, kept, written = 0.0, 0, 0
            # On a busy machine one day may have more rounds than all before it; then that day has to pass too.
            while days < 5 or (days < 50 and kept >= written / 3):
                await honest.go_on(5)
                kept = _rows(server)
                written = GOAL * honest.committed
                days = (time.monotonic() - began) / day_s

    figures(f"{kept} rows of {written} left")
    # Those of the last of at least five days, and of the round that is under way.
    assert kept < written / 3


def _rows(server: PlainServer) -> int:
    path = server.process.folder / "data" / "server.sqlite3"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT count(*) FROM members").fetchone()[0])


def _value(metrics: str, name: str) -> float:
    (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", metrics, re.MULTILINE)
    return float(found)


def figures(text: str) -> None:
    """Print what docs/hostile-clients.md tells; `pytest -s` shows it."""
    print(f"\n{text}")
