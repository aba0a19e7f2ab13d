"""Mutated requests over all endpoints: no fault of the server, and no growth of it."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fedlens_server.clock import SystemClock
from fedlens_server.http.app import create_admin_app, create_app
from fedlens_server.http.service import SERVICE
from tests.integration.hostile.honest_rounds import CLIENTS, HonestRounds, honest_rounds
from tests.integration.hostile.mutations import VALID, Mutator, Request
from tests.integration.hostile.page_requests import PAGE_SEEDS
from tests.integration.hostile.plain_server import (
    Footprint,
    PlainServer,
    Reply,
    connected,
    exchange,
    plain_server,
    reply,
)
from tests.integration.hostile.seed_requests import API_SEEDS, World, any_of
from tests.server.http.running import config, opened

SEEDS = API_SEEDS | PAGE_SEEDS
CONNECTIONS = 16
ANSWER_S, GIVE_UP_S = 30.0, 0.1
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
SHOWN_BYTES = 1_000
LEAST_WARM_UP = 8_000
LOOKS = 5
ALLOWED = (503, 507)
BROKEN = (asyncio.IncompleteReadError, ConnectionError)


def test_every_endpoint_has_a_valid_request_to_begin_with(tmp_path: Path) -> None:
    store = opened(config(tmp_path).server.data)
    try:
        app = create_app(config(tmp_path), SystemClock(), store)
        routes = {
            (side, route.method, route.resource.canonical)
            for side, application in (("clients", app), ("operators", create_admin_app(app[SERVICE])))
            for route in application.router.routes()
            if route.resource is not None
        }
    finally:
        store.close()

    head = {(side, "HEAD", path) for side, method, path in routes if method == "GET"}  # aiohttp serves it with GET
    assert routes - head == SEEDS.keys()


class Sender:
    """Connections over which mutated requests go, each made of the seed and its number alone and of the world."""

    def __init__(self, world: World, seed: int, folder: Path) -> None:
        self._world = world
        self._folder = folder  # for a request that should be sent again
        self._seed = seed
        self.sent = self.mutated = self.answered = self.succeeded = 0

    async def send(self, numbers: range, connections: int = CONNECTIONS) -> None:
        rest = iter(numbers)
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._send(rest))

    async def _send(self, numbers: Iterator[int]) -> None:
        """Send request after request over one connection a side; what may break that has one of its own."""
        async with AsyncExitStack() as stack:
            streams: dict[str, Any] = {}
            for number in numbers:
                request = self._request(number)
                if not request.is_framed_rightly:
                    async with connected(self._world.url(request.side)) as stream:
                        self._note(number, request, await self._answer(stream, request))
                    continue
                if request.side not in streams:
                    streams[request.side] = await stack.enter_async_context(connected(self._world.url(request.side)))
                answer = await self._answer(streams[request.side], request)
                if answer is None or answer.is_last:
                    streams.pop(request.side)[1].transport.abort()
                self._note(number, request, answer)

    def _request(self, number: int) -> Request:
        random = Random(f"{self._seed} {number}")
        seed = any_of(SEEDS, self._world, random)
        others = (self._world.subject(random).bearer, self._world.readers_bearer)
        return Mutator(random, others).mutated(seed)

    def _note(self, number: int, request: Request, answer: Reply | None) -> None:
        self.sent += 1
        self.mutated += bool(request.changes)
        if answer is None:
            return
        assert answer.status < 500 or answer.status in ALLOWED, (
            f"request {number} of seed {self._seed}, {request.changes}, got {answer}; {_kept(self._folder, request)}"
        )
        self.answered += 1
        self.succeeded += answer.status < 300
        if request.learn is not None and not request.changes:
            request.learn(answer)

    async def _answer(self, stream: Any, request: Request) -> Reply | None:
        """The answer; None if the connection breaks, or a request that is not whole gets none."""
        reader, writer = stream
        writer.write(request.raw)
        may_hang = not request.is_framed_rightly or ("check-in" in request.path and request.changes)
        answering = asyncio.create_task(reply(reader, request.method))
        try:
            await asyncio.wait([answering], timeout=GIVE_UP_S if may_hang else ANSWER_S)
            if may_hang and not answering.done():
                # A busy machine may be late with the answer; who comes after that has one shows that there is none.
                await exchange(self._world.url(request.side), HEALTH)
            elif not answering.done():
                raise AssertionError(f"no answer within {ANSWER_S} s; {_kept(self._folder, request)}")
            return answering.result() if answering.done() else None
        except BROKEN:
            return None
        finally:
            answering.cancel()


def _kept(folder: Path, request: Request) -> str:
    """Where a request lies, so that it can be sent again, and its first bytes."""
    path = folder / f"request-to-{request.side}"
    path.write_bytes(request.raw)
    return f"{path}, which begins with {request.raw[:SHOWN_BYTES]!r}"


async def _at_rest(server: PlainServer, honest: HonestRounds) -> Footprint:
    """The least footprint of a few, each after an honest round: at one moment 8 MB may be in use for a short time."""
    looks = []
    for _ in range(LOOKS):
        await honest.go_on(1)
        looks.append(server.footprint())
    return Footprint(min(each.resident_mb for each in looks), min(each.descriptors for each in looks))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("count", "seed"),
    [
        pytest.param(20_000, 0, marks=pytest.mark.slow),
        *(pytest.param(100_000, seed, marks=pytest.mark.long) for seed in range(1, 11)),
    ],
)
async def test_mutated_requests_find_no_fault_and_the_server_does_not_grow(
    tmp_path: Path, count: int, seed: int
) -> None:
    total = ceil(1.02 * count / (1 - VALID))
    with plain_server(tmp_path / "server", server='backups = "backups"', upload_stall_s=0.5) as server:
        async with honest_rounds(server) as honest:
            world = await asyncio.to_thread(World.of, server)
            # More at a time than later on, so that pools and caches, SQLite's too, have the size that they keep.
            warm_up = range(total, total + max(LEAST_WARM_UP, count // 2))
            await Sender(world, seed, tmp_path).send(warm_up, 4 * CONNECTIONS)

            sender = Sender(world, seed, tmp_path)
            await sender.send(range(total // 10))
            early = await _at_rest(server, honest)
            await sender.send(range(total // 10, total))
            late = await _at_rest(server, honest)
            await honest.go_on()

        log = server.log

    print(
        f"\n{sender.sent} sent, {sender.mutated} mutated, {sender.answered} answered, {sender.succeeded} with success; "
        f"{early}, {late}"
    )
    assert sender.mutated >= count
    assert [line for line in log.splitlines() if " ERROR fedlens_server" in line] == []
    assert late.resident_mb <= early.resident_mb * 1.05
    # Each honest client may have a file under way at that moment.
    assert late.descriptors <= early.descriptors * 1.05 + CLIENTS
    assert sender.answered > 0.8 * sender.sent
    assert sender.succeeded > 0.25 * sender.sent
