"""The server may die at any moment: nothing acknowledged is lost, and the result is the same to the last bit."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client.client.events import Event
from fedlens_edge_client.client.http_transport import HttpTransport, trust
from fedlens_edge_client.emulation.faults import FaultPlan, FaultRates
from fedlens_edge_client.emulation.faulty_transport import FaultyTransport
from tests.integration import federation, records, two_drivers
from tests.integration.conftest import NewBundle
from tests.integration.processes import ServerProcess
from tests.integration.records import NotingTransport, Receipt

CLIENTS = 4
# Those of a task that takes arrivals: a round wants three updates and asks four clients, so that some come too late.
COMING, GOAL = 6, 3


class Killer:
    """Kills the server at seeded moments of a run and starts it again."""

    def __init__(self, server: ServerProcess, kills: int, seed: int = 20, most_events: int = 8) -> None:
        self._server = server
        self._most_events = most_events
        self._random = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[None] = asyncio.Queue()
        self.left = kills

    def notice(self, index: int, event: Event) -> None:
        """Something happened in a client, perhaps in its computing thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, None)

    async def run(self) -> None:
        """After each kill, let a few things happen, then a moment that no event marks, then kill again."""
        while self.left:
            for _ in range(self._random.randint(1, self._most_events)):
                await self._events.get()
            await asyncio.sleep(self._random.uniform(0, 0.03))
            await asyncio.to_thread(self._server.kill)
            self.left -= 1
            await asyncio.to_thread(self._server.start)
            while not self._events.empty():
                self._events.get_nowait()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kills", "rounds", "codecs"), [pytest.param(20, 16, (), marks=pytest.mark.long), (5, 6, federation.CODECS)]
)
async def test_a_server_killed_at_many_moments_ends_with_the_same_bytes(
    tmp_path: Path, photos: Path, bundle: Path, server: ServerProcess, kills: int, rounds: int, codecs: tuple[str, ...]
) -> None:
    federation.create_task(server, bundle, *codecs, rounds=rounds, clients=CLIENTS, name="calm")
    await federation.run_clients(server, tmp_path / "calm", photos, CLIENTS)
    federation.create_task(server, bundle, *codecs, rounds=rounds, clients=CLIENTS, name="stormy")
    killer = Killer(server, kills)

    async with asyncio.TaskGroup() as group:
        killing = group.create_task(killer.run())
        await federation.run_clients(server, tmp_path / "stormy", photos, CLIENTS, killer.notice)
        killing.cancel()

    assert killer.left == 0
    assert federation.final_blob(server, tmp_path, "stormy") == federation.final_blob(server, tmp_path, "calm")
    shown: Any = server.task("show", "stormy")
    assert [len(each["members"]) for each in shown["rounds"]] == [CLIENTS] * rounds
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("selection", "more"),
    [
        # Of clients that may still take part, the last one may be alone in a round, which then ends by its deadline.
        (("--goal", "2"), ("over_selection=1.5", "patience_s=0", "deadline_s=4", "member_deadline_s=3")),
        pytest.param(("--population", "4", "--cohort", "3"), (), marks=pytest.mark.long),
    ],
)
async def test_killed_at_many_moments_the_server_lets_no_client_take_part_more_often_than_it_may(
    tmp_path: Path,
    photos: Path,
    exported: NewBundle,
    server: ServerProcess,
    selection: tuple[str, ...],
    more: tuple[str, ...],
) -> None:
    bundle, most = exported("small", "cross_entropy"), 5
    private = ('dp={"clip": 1, "noise": 1}', f"max_participations={most}", "batch_norm=local_statistics")
    given = [word for each in (*private, *more) for word in ("--set", each)]
    server.task("create", "digits", "--bundle", str(bundle), "--rounds", "1000", *selection, *given)
    killer = Killer(server, kills=8, most_events=10)

    async with asyncio.TaskGroup() as group:
        killing = group.create_task(killer.run())
        # Each one ends when it is told that it is finished.
        await federation.run_clients(server, tmp_path / "clients", photos, CLIENTS, killer.notice)
        killing.cancel()

    shown: Any = server.task("show", "digits")
    assert server.stop() == 0
    assert killer.left < 8
    assert records.times_reported(server.folder / "data") == {most}
    assert shown["task"]["state"] == "running"
    assert shown["task"]["privacy"]["participations"] <= most
    # 4 clients report 5 times, at most 3 to a round.
    assert shown["task"]["rounds_committed"] >= 6


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kills", "seed"),
    [
        pytest.param(10, 1, marks=pytest.mark.slow),
        *(pytest.param(50, seed, marks=pytest.mark.long) for seed in range(2, 6)),
    ],
)
async def test_with_arrivals_no_acknowledged_update_is_lost_and_clients_adopt_only_what_is_stored(
    tmp_path: Path, photos: Path, exported: NewBundle, server: ServerProcess, kills: int, seed: int
) -> None:
    bundle = exported("small", "cross_entropy")
    options = ["--method", "fedper", "--goal", str(GOAL), "--set", "over_selection=1.3", "--set", "patience_s=0"]
    server.task("create", "digits", "--bundle", str(bundle), "--rounds", "100000", "--epochs", "1", *options)
    fleet = two_drivers.fleet(tmp_path / "fleet", photos, COMING)
    receipts: list[Receipt] = []
    killer = Killer(server, kills, seed, most_events=40)
    twice = FaultPlan(rates=FaultRates(seed=seed, duplicate=0.3))

    async def run(index: int, executor: ThreadPoolExecutor) -> None:
        http = HttpTransport(server.url, fleet.secret(index), ssl_context=trust(server.ca), backoff=two_drivers.BACKOFF)
        way = NotingTransport(FaultyTransport(http, twice, index), fleet.client_id(index), receipts)
        tell = partial(killer.notice, index)
        async with two_drivers.member(server, fleet, index, transport=way, executor=executor, on_event=tell) as client:
            await client.run()

    with ThreadPoolExecutor(1) as executor:
        clients = [asyncio.create_task(run(index, executor)) for index in range(COMING)]
        killing = asyncio.create_task(killer.run())
        await asyncio.wait([killing, *clients], return_when=asyncio.FIRST_COMPLETED)
        for task in (killing, *clients):
            task.cancel()
        outcomes = await asyncio.gather(killing, *clients, return_exceptions=True)

    assert [each for each in outcomes if isinstance(each, Exception)] == []
    assert killer.left == 0
    shown: Any = server.task("show", "digits")
    assert server.stop() == 0
    assert shown["task"]["state"] == "running"
    assert shown["task"]["rounds_committed"] >= kills // 2
    assert any("late" in found["counts"] for found in shown["rounds"])
    states = {fleet.client_id(index): fleet.folder(index) for index in range(COMING)}
    records.check(server.folder / "data", states, receipts, keeping=1)
