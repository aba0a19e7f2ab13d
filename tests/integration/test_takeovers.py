"""Two servers of one database: the leader is frozen, cut off or killed at any moment, and the other one takes over."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from itertools import cycle
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch
from urllib.parse import urlsplit

import aiohttp
import pytest
import torch
from torch import nn

from fedlens_proto.manifest import initial_set
from fedlens_proto.v1 import admin_pb2, check_in_pb2
from fedlens_server.store import MAX_ROW_BYTES, StateAddress
from tests.integration import federation
from tests.integration.processes import ServerProcess, free_ports
from tests.integration.test_server_crashes import CLIENTS, Killer
from tests.integration.twins import Twin
from tests.server.bundles import tiny_bundle
from tests.server.elsewhere import Link, elsewhere, running_cluster, running_gateway, through
from tests.server.http.running import Answer, Client, Server, round_path, update

CHECK_IN = check_in_pb2.CheckInRequest(protocol=1, num_examples=10).SerializeToString()
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[Any, Any]]:
    """A PostgreSQL server and an S3 server, which processes reach too."""
    with running_cluster() as cluster, running_gateway() as gateway, patch.dict(os.environ, gateway.environment()):
        yield cluster, gateway


@pytest.fixture
def state(places: tuple[Any, Any], tmp_path: Path) -> StateAddress:
    return elsewhere(tmp_path / "one" / "data", *places)


@pytest.fixture
def link(places: tuple[Any, Any]) -> Iterator[Link]:
    """The network between the first server and the database."""
    with closing(Link(places[0].socket)) as opened:
        yield opened


@pytest.fixture
def twins(state: StateAddress, link: Link, tmp_path: Path) -> Iterator[tuple[Twin, Twin]]:
    """A leader, which reaches its database through the link, and its standby, each at a port of its own."""
    assert state.database is not None
    template = Twin.of(state, tmp_path / "one")
    (port,) = free_ports(1)
    first = template.twin(tmp_path / "two", database=through(link, state.database))
    second = template.twin(tmp_path / "three", port=port)
    with ExitStack() as held:
        for each in (first, second):
            held.callback(each.kill)
            each.start()
        yield first, second


@asynccontextmanager
async def speaking(*twins: Twin) -> AsyncIterator[list[Server]]:
    """What sends requests to these."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        nothing = cast(Any, None)
        yield [Server(each.url, each.profile.url, nothing, nothing, session, each.folder) for each in twins]


async def outcome(asking: "asyncio.Task[Answer]") -> object:
    """The status of an answer, and what its error says; None: the connection was closed."""
    try:
        answer = await asking
    except aiohttp.ClientError:
        return None
    return answer.outcome


@pytest.mark.parametrize("moment", ["idle", "in a transaction", "between COMMIT and its answer"])
async def test_a_leader_that_was_frozen_neither_writes_nor_answers_once_it_wakes(
    twins: tuple[Twin, Twin], link: Link, moment: str
) -> None:
    first, second = twins
    async with speaking(first) as (old,):
        await old.create(tiny_bundle(), population=2, min_reports=2)
        clients = [await old.client(index, first.token("trainer")) for index in (1, 2)]
        given = [await client.assignment() for client in clients]
        sending = list[asyncio.Task[Answer]]()
        if moment != "idle":
            own = clients[0].id  # which its row has
            link.hold_after(own if moment == "in a transaction" else b"COMMIT\0", of=own)
            sending.append(asyncio.create_task(clients[0].upload(given[0])))
            assert await asyncio.to_thread(link.held.wait, 20)
        first.freeze()
        link.go_on()
        await asyncio.to_thread(second.until_it_leads)

        async with speaking(second) as (new,):
            again = [Client(new, client.secret) for client in clients]
            receipts = [await client.upload(each) for client, each in zip(again, given, strict=True)]
            latecomer = await new.client(3, first.token("trainer"))
            # To the old one, the last client is nobody's, the round is open, and other bytes than these were stored.
            other = update(given[0], num_examples=11)
            late = [
                asyncio.create_task(each)
                for each in (
                    Client(old, latecomer.secret).send("POST", "/v1/check-in", CHECK_IN),
                    clients[0].upload(given[0], other),
                    clients[1].send("POST", f"{round_path(given[1])}/failure", b"\x08\x01\x10\x01"),
                    old.admin("POST", "/v1/admin/tasks/demo/stop"),
                )
            ]
            await asyncio.sleep(0.2)  # until they are in the frozen server's hands
            first.wake()
            outcomes = [await outcome(each) for each in (*late, *sending)]
            status, log = first.ended()
            shown = await new.show()

    assert [receipt.status for receipt in receipts] == [200, 200]
    assert set(outcomes) <= {None, (503, "unavailable")}
    assert status == 1
    # The second: its COMMIT met the end of its session, which has undone the transaction, as the server cannot know.
    assert "another server leads" in log or (moment != "idle" and "database was lost" in log)
    assert shown.task.rounds_committed == 1
    assert [found.round for found in shown.rounds] == [1, 2]
    assert [member.state for member in shown.rounds[0].members] == [admin_pb2.MEMBER_STATE_REPORTED] * 2
    assert shown.task.state == admin_pb2.TASK_STATE_RUNNING


async def test_a_commit_whose_answer_was_lost_is_done_once_and_the_next_round_opens_once(
    twins: tuple[Twin, Twin], link: Link
) -> None:
    first, second = twins
    async with speaking(first) as (old,):
        await old.create(tiny_bundle(), population=1)
        client = await old.client(1, first.token("trainer"))
        given = await client.assignment()
        link.cut_after(b"COMMIT\0", of=client.id)
        unanswered = await outcome(asyncio.create_task(client.upload(given)))
        status, log = first.ended()
    await asyncio.to_thread(second.until_it_leads)
    async with speaking(second) as (new,):
        receipt = await Client(new, client.secret).upload(given)
        following = await Client(new, client.secret).assignment()
        shown = await new.show()

    assert link.swallowed.wait(10)
    assert unanswered in (None, (503, "unavailable"))
    assert (status, "could not be written" in log) == (1, True)
    assert receipt.status == 200
    assert following.round == 2
    assert [(found.round, len(found.members)) for found in shown.rounds] == [(1, 1), (2, 1)]


async def test_while_the_network_to_the_database_is_slow_or_cut_clients_are_told_to_come_again(
    twins: tuple[Twin, Twin], link: Link
) -> None:
    first, second = twins
    second.kill()  # nobody takes over
    async with speaking(first) as (server,):
        await server.create(tiny_bundle(), population=1)
        client = await server.client(1, first.token("trainer"))
        given = await client.assignment()
        answers = list[Answer]()
        for trouble in (link.hold, link.cut):
            trouble()
            until = time.monotonic() + 4
            while time.monotonic() < until:
                answers.append(await client.send("POST", "/v1/check-in", CHECK_IN))
                await asyncio.sleep(0.05)
            link.go_on()
            while not (answer := await client.send("POST", "/v1/check-in", CHECK_IN)).status == 200:
                answers.append(answer)
                await asyncio.sleep(0.05)
        receipt = await client.upload(given)

    assert {answer.outcome for answer in answers} == {(200, ""), (503, "unavailable")}
    assert receipt.status == 200


class Pair:
    """Two servers at one port, of which the one that leads is killed, and started again as the other's standby.

    Clients speak to it through a gate, which is closed while there are not two: starting one takes longer than a round.
    """

    def __init__(self, state: StateAddress, folder: Path) -> None:
        first = Twin.of(state, folder / "one")
        self.twins = [first, first.twin(folder / "two")]
        self.ca, self.token = first.ca, first.token
        for each in self.twins:
            each.start()
        address = urlsplit(self.leader.url)
        assert address.port is not None
        self._gate = Link(address.port)
        self.url = address._replace(netloc=f"127.0.0.1:{self._gate.port}").geturl()

    @property
    def leader(self) -> Twin:
        """The one that leads; waits until there is one."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for each in self.twins:
                if each.pid and each.has_announced():
                    each.until_it_leads()
                    return each
            time.sleep(0.01)
        raise AssertionError("nobody leads")

    def kill(self) -> None:
        """Kill the leader."""
        self.leader.kill()
        self._gate.hold()

    def start(self) -> None:
        """Start what was killed; return when a server leads, and another stands by."""
        for each in self.twins:
            if not each.pid:
                each.start()
        assert self.leader
        self._gate.go_on()

    def task(self, *arguments: str) -> dict[str, object]:
        """`fedlens task` against the server that leads."""
        return self.leader.task(*arguments)

    def close(self) -> None:
        """Kill both."""
        self._gate.close()
        for each in self.twins:
            each.kill()


@pytest.mark.parametrize(
    ("kills", "rounds"),
    [(10, 9), pytest.param(100, 90, marks=[pytest.mark.long, pytest.mark.timeout(3000)])],
)
async def test_leaders_killed_at_many_moments_lose_nothing_and_end_with_the_same_bytes(
    state: StateAddress, tmp_path: Path, photos: Path, bundle: Path, kills: int, rounds: int
) -> None:
    pair = await asyncio.to_thread(Pair, state, tmp_path)
    with closing(pair):
        server = cast(ServerProcess, pair)
        federation.create_task(server, bundle, rounds=rounds, clients=CLIENTS, name="calm")
        await federation.run_clients(server, tmp_path / "calm", photos, CLIENTS)
        federation.create_task(server, bundle, rounds=rounds, clients=CLIENTS, name="stormy")
        killer = Killer(server, kills, most_events=6)

        async with asyncio.TaskGroup() as group:
            killing = group.create_task(killer.run())
            await federation.run_clients(server, tmp_path / "stormy", photos, CLIENTS, killer.notice)
            killing.cancel()

        shown: Any = server.task("show", "stormy")
        blobs = [federation.final_blob(server, tmp_path, name) for name in ("calm", "stormy")]

    assert killer.left == 0
    assert blobs[0] == blobs[1]
    assert [len(each["members"]) for each in shown["rounds"]] == [CLIENTS] * rounds
    assert {member["state"] for each in shown["rounds"] for member in each["members"]} == {"reported"}


class Behind:
    """PostgreSQL and the S3 server behind a whole server, of which one after the other is killed and comes back."""

    def __init__(self, cluster: Any, gateway: Any) -> None:
        self._turns = cycle((cluster, gateway))
        self._dead: Any = None

    def kill(self) -> None:
        """Kill one."""
        self._dead = next(self._turns)
        self._dead.kill()

    def start(self) -> None:
        """Start it again, when the server has had time to miss it."""
        time.sleep(0.3)
        self._dead.start()


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """A bundle whose weights take more than a row holds, so that no round goes on without the S3 server."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * federation.SIDE**2, 100), nn.ReLU(), nn.Linear(100, 10))
    made = federation.digits_bundle(tmp_path / "objects", model, "objects")
    assert initial_set(made.manifest).size > MAX_ROW_BYTES
    return made.folder


async def test_killed_behind_a_whole_server_postgresql_and_s3_lose_nothing_and_it_ends_with_the_same_bytes(
    places: tuple[Any, Any], state: StateAddress, tmp_path: Path, photos: Path, objects: Path
) -> None:
    kills, rounds = 8, 24
    # With a lead of its usual length: a server that cannot renew it for so long ends, and another one goes on.
    server = Twin.of(state, tmp_path / "one", launcher=())
    with ExitStack() as held:
        held.callback(server.kill)
        server.start()
        federation.create_task(server, objects, rounds=rounds, clients=CLIENTS, name="calm")
        await federation.run_clients(server, tmp_path / "calm", photos, CLIENTS)
        federation.create_task(server, objects, rounds=rounds, clients=CLIENTS, name="stormy")
        killer = Killer(cast(ServerProcess, Behind(*places)), kills, most_events=6)

        async def restart() -> None:
            """Start the server again whenever it has ended, as systemd does: a commit's answer was lost."""
            while True:
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(server.ended)
                    await asyncio.to_thread(server.start)

        async with asyncio.TaskGroup() as group:
            background = [group.create_task(each) for each in (killer.run(), restart())]
            await federation.run_clients(server, tmp_path / "stormy", photos, CLIENTS, killer.notice)
            for each in background:
                each.cancel()

        blobs = [federation.final_blob(server, tmp_path, name) for name in ("calm", "stormy")]
        shown: Any = server.task("show", "stormy")

    assert killer.left == 0
    assert blobs[0] == blobs[1]
    assert {member["state"] for each in shown["rounds"] for member in each["members"]} == {"reported"}
