"""The server may die at any moment: nothing acknowledged is lost, and the result is the same to the last bit."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client.client.events import Event
from tests.integration import federation
from tests.integration.processes import ServerProcess

CLIENTS = 4


class Killer:
    """Kills the server at seeded moments of a run and starts it again."""

    def __init__(self, server: ServerProcess, kills: int) -> None:
        self._server = server
        self._random = random.Random(20)
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[None] = asyncio.Queue()
        self.left = kills

    def notice(self, index: int, event: Event) -> None:
        """Something happened in a client, perhaps in its computing thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, None)

    async def run(self) -> None:
        """After each kill, let a few things happen, then a moment that no event marks, then kill again."""
        while self.left:
            for _ in range(self._random.randint(1, 8)):
                await self._events.get()
            await asyncio.sleep(self._random.uniform(0, 0.03))
            await asyncio.to_thread(self._server.kill)
            self.left -= 1
            await asyncio.to_thread(self._server.start)
            while not self._events.empty():
                self._events.get_nowait()


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "rounds", "codecs"), [(20, 16, ()), (5, 6, federation.CODECS)])
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
