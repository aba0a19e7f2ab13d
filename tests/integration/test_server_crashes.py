"""The server may die at any moment: nothing acknowledged is lost, and the result is the same to the last bit."""

import asyncio
import random
from pathlib import Path

import pytest

from fedlens_edge_client.client.events import Event
from tests.integration import federation
from tests.integration.processes import ServerProcess

CLIENTS = 4
ROUNDS = 16
KILLS = 20


class Killer:
    """Kills the server at seeded moments of a run and starts it again."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[None] = asyncio.Queue()
        self.kills = 0

    def notice(self, index: int, event: Event) -> None:
        """Something happened in a client, perhaps in its computing thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, None)

    async def run(self) -> None:
        """After each kill, let a few things happen, then a moment that no event marks, then kill again."""
        while self.kills < KILLS:
            for _ in range(self._random.randint(1, 8)):
                await self._events.get()
            await asyncio.sleep(self._random.uniform(0, 0.03))
            await asyncio.to_thread(self._server.kill)
            self.kills += 1
            await asyncio.to_thread(self._server.start)
            while not self._events.empty():
                self._events.get_nowait()


@pytest.mark.slow
async def test_a_server_killed_at_twenty_moments_ends_with_the_same_bytes(
    tmp_path: Path, photos: Path, bundle: Path, server: ServerProcess
) -> None:
    calm = ServerProcess.prepared(tmp_path / "calm")
    calm.start()
    federation.create_task(calm, bundle, rounds=ROUNDS, clients=CLIENTS)
    await federation.run_clients(calm, tmp_path / "calm-clients", photos, CLIENTS)
    undisturbed = federation.final_blob(calm, tmp_path / "calm")
    assert calm.stop() == 0
    federation.create_task(server, bundle, rounds=ROUNDS, clients=CLIENTS)
    killer = Killer(server, seed=20)

    async with asyncio.TaskGroup() as group:
        killing = group.create_task(killer.run())
        await federation.run_clients(server, tmp_path / "clients", photos, CLIENTS, killer.notice)
        killing.cancel()

    assert killer.kills == KILLS
    assert federation.final_blob(server, tmp_path) == undisturbed
    shown = server.task("show", "digits")
    assert [len(r["members"]) for r in shown["rounds"]] == [CLIENTS] * ROUNDS
