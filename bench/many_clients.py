"""A server with very many clients: enrolled, waiting, checking in and sending updates.

Each client sends bytes that were prepared beforehand. Server and clients have a core of their own where there are two.
"""

import asyncio
import os
import random
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench import models, prepared_requests
from bench.prepared_requests import Connection
from bench.row import Row, Sample, against_more, against_target, seconds
from bench.server_process import Server, serving, status_mb
from fedlens_proto import blob, keyed_hash, wire
from fedlens_proto.v1 import check_in_pb2, update_pb2
from fedlens_server.init import DATA, make_data
from fedlens_server.store import Store

ENROLLED, PRESENT = 1_000_000, 100_000
HOLD_MS = 600_000
ROUNDS = 5
UPDATES, CONNECTIONS, LASTS_S, MOST_GROWTH_MB = 10_000, 50, 600, 10
LIMITS = "max_polls = 100_000\nmax_hold_ms = 600_000"
HEAD = {"fc.bias": (10,), "fc.weight": (10, 256)}  # 10 kB
FAILURE = update_pb2.FailureRequest(protocol=wire.PROTOCOL, reason=update_pb2.FAILURE_REASON_BUNDLE).SerializeToString()
ARRIVALS: dict[str, Any] = {
    **{"selection": "arrivals", "max_consecutive_abandoned": 1000},
    **{"over_selection": 1.0, "canary": 0},  # all places at once
}


def enrolled(folder: Path) -> Iterator[Row]:
    """A million enrolled clients of which a tenth is present: memory, start of the server, opening of a round."""
    generator, now = random.Random(1), time.time()
    clients = [generator.randbytes(32) for _ in range(ENROLLED)]
    with closing(_new_state(folder / "million")) as store:
        prepared_requests.enrol(store, clients[:PRESENT], last_seen=now - 600)
        prepared_requests.enrol(store, clients[PRESENT:], last_seen=now - 10 * 86_400)
    ids = sys.getsizeof(dict.fromkeys(clients)) / ENROLLED + sys.getsizeof(clients[0])
    bundle = models.inert_bundle(HEAD, folder / "bundle")
    found = dict[str, tuple[float, float, list[float]]]()
    for name in ("none", "million"):
        started = time.perf_counter()
        with serving(folder / name) as server:
            ready_s = time.perf_counter() - started
            memory = status_mb(server.pid, "VmRSS")
            settings = ARRIVALS | {"rounds": 1, "goal": 100}
            server.create_task(bundle, settings)  # its parts are there when the next task is made
            again = partial(server.create_task, bundle, settings)
            opened_ms = [1000 * seconds(partial(again, name=f"bench {i}")) for i in range(ROUNDS)]
        found[name] = ready_s, memory, opened_ms
    few, many = found["none"], found["million"]
    name = f"{ENROLLED:,} enrolled, {PRESENT:,} of them present"
    each = (many[1] - few[1]) * 1e6 / ENROLLED
    yield against_target(
        f"{name}: memory a client", Sample((ids,)), Sample((each,)), 400, "the ids in a dict", unit="B", digits=0
    )
    yield against_target(
        f"{name}: server started", Sample((few[0],)), Sample((many[0],)), 10, "without clients", unit="s", digits=1
    )
    yield against_target(
        f"{name}: task made and its round opened",
        *(Sample(tuple(few[2])), Sample(tuple(many[2])), 50, "without clients"),
        unit="ms",
        digits=1,
    )


def polls(folder: Path) -> Iterator[Row]:
    """Held polls: until those that get a place know of it, and what each one costs."""
    for waiting, places in ((1_000, 13), (10_000, 100)):
        yield from asyncio.run(_polls(folder / str(waiting), waiting, places))


async def _polls(folder: Path, waiting: int, places: int) -> list[Row]:
    clients = waiting + (ROUNDS + 1) * places
    with closing(_new_state(folder)) as store:
        prepared_requests.enrol(store, [keyed_hash.client_id(prepared_requests.secret(i)) for i in range(clients)])
    bundle = models.inert_bundle(HEAD, folder / "bundle")
    with serving(folder, LIMITS) as server:
        before = status_mb(server.pid, "VmRSS")
        connections = [await Connection.to(server.url) for _ in range(clients)]
        waiters = {each.send(prepared_requests.check_in(i, HOLD_MS)): i for i, each in enumerate(connections)}
        await server.idle()
        each_kb = (status_mb(server.pid, "VmRSS") - before) * 1000 / clients
        settings = ARRIVALS | {"rounds": 1, "goal": places, "max_failures": 1}
        await asyncio.to_thread(server.create_task, bundle, settings)
        got, took = await _places(waiters, places), list[float]()
        for _ in range(ROUNDS):
            await server.idle()
            client, number = got[-1]
            path = f"/v1/tasks/1/rounds/{number}/failure"
            failing = prepared_requests.request("POST", path, client, FAILURE)
            started = time.perf_counter()
            connections[client].send(failing)  # ends the round, so that another one opens
            got = await _places(waiters, places)
            took.append(1000 * (time.perf_counter() - started))
        for each in connections:
            each.close()
    floor = Sample((0.0,))
    rows = [
        against_target(
            f"a round opens with {waiting:,} held polls: until {places} clients have their places",
            *(floor, Sample(tuple(took)), 100, "none: a round that nobody waits for"),
            unit="ms",
            digits=0,
        )
    ]
    if waiting >= 10_000:
        name = f"{waiting:,} held polls: memory of each"
        rows.append(against_target(name, floor, Sample((each_kb,)), 30, "no polls", unit="kB", digits=1))
    return rows


async def _places(waiters: dict[asyncio.Future[bytes], int], places: int) -> list[tuple[int, int]]:
    """The clients that get so many places, each with its round, once all have them; they wait no more."""
    got = list[tuple[int, int]]()
    while len(got) < places:
        done, _ = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            answer = check_in_pb2.CheckInResponse.FromString(each.result())
            if not answer.HasField("assignment"):
                raise RuntimeError(f"a held poll was answered with {answer}")
            got.append((waiters.pop(each), answer.assignment.round))
    return got


def throughput(folder: Path) -> Iterator[Row]:
    """Ten minutes of check-ins, and ten of updates of 10 kB: the server has one core, its clients have the other."""
    bundle = models.inert_bundle(HEAD, folder / "bundle")
    cores = sorted(os.sched_getaffinity(0))
    for name, least, goal, send in (("check-ins", 3000, 1, _check_ins), ("updates of 10 kB", 1000, UPDATES, updates)):
        with closing(_new_state(folder / name)) as store:
            prepared_requests.enrol(store, [keyed_hash.client_id(prepared_requests.secret(i)) for i in range(UPDATES)])
        with serving(folder / name, LIMITS) as server:
            _pin(server.pid, cores[0])
            os.sched_setaffinity(0, cores[-1:])
            try:
                server.create_task(bundle, ARRIVALS | {"rounds": 1000, "goal": goal, "min_reports": goal, "rest": 0})
                yield from _rate_rows(server, name, least, send)
            finally:
                os.sched_setaffinity(0, cores)


async def _check_ins(server: Server) -> tuple[int, float]:
    """A number of check-ins of clients that find the round full, and the seconds that they take."""
    prepared = [prepared_requests.check_in(i % UPDATES) for i in range(1000 * CONNECTIONS)]
    lasted, _ = await prepared_requests.send_all(server.url, prepared, CONNECTIONS)
    return len(prepared), lasted


async def updates(server: Server) -> tuple[int, float]:
    """The number of a round's updates, and the seconds that they take: places and the commit are not in them."""
    raw = blob.encode(models.tensors(HEAD, seed=2))
    prepared = list[bytes]()
    check_ins = [prepared_requests.check_in(i, HOLD_MS) for i in range(UPDATES)]
    _, answers = await prepared_requests.send_all(server.url, check_ins, CONNECTIONS)
    for index, answer in enumerate(answers):
        given = check_in_pb2.CheckInResponse.FromString(answer).assignment
        own = raw[:-8] + struct.pack("<2f", index, given.round)  # no two are the same bytes
        header = update_pb2.UpdateHeader(
            protocol=wire.PROTOCOL,
            phase=given.phase,
            bundle=given.bundle,
            num_examples=1,
            evaluations=[
                update_pb2.EvaluationSums(label=each.label, count=1, correct=1, loss=0.5)
                for each in given.local_plan.evaluations
            ],
            uploads=[
                update_pb2.UploadedBlob(name=each.name, sha256=sha256(own).digest(), size=len(own))
                for each in given.local_plan.uploads
            ],
        )
        path = f"/v1/tasks/{given.task}/rounds/{given.round}/update"
        prepared.append(prepared_requests.request("PUT", path, index, wire.frame_update(header) + own))
    lasted, _ = await prepared_requests.send_all(server.url, prepared, CONNECTIONS)
    return len(prepared), lasted


def _rate_rows(
    server: Server, name: str, least: int, send: Callable[[Server], Coroutine[None, None, tuple[int, float]]]
) -> Iterator[Row]:
    """Send again and again, until ten minutes have passed."""
    started, rates, memory, sent = time.monotonic(), list[float](), list[tuple[float, float]](), 0
    while not memory or memory[-1][0] < LASTS_S:
        count, lasted = asyncio.run(send(server))
        sent += count
        rates.append(count / lasted)
        memory.append((time.monotonic() - started, status_mb(server.pid, "VmRSS")))
    (passed, late), early = memory[-1], next(mb for passed, mb in memory if passed >= LASTS_S / 5)
    yield against_target(
        f"{name} alone, server on one core",
        *(Sample((0.0,)), Sample(tuple(rates)), least, "none"),
        unit="a second",
        digits=0,
        at_least=True,
        note=f"{sent / passed:.0f} a second over all of the ten minutes, in which requests are prepared, too, and "
        "rounds of updates open and commit",
    )
    yield against_more(
        f"{name} alone: memory after ten minutes",
        *(Sample((early,)), Sample((late,)), MOST_GROWTH_MB, "after two minutes"),
        unit="MB",
        digits=0,
    )


def _pin(pid: int, core: int) -> None:
    """Keep all threads of a process on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def _new_state(folder: Path) -> Store:
    folder.mkdir(parents=True, exist_ok=True)
    make_data(folder / DATA)
    return Store.open(folder / DATA)
