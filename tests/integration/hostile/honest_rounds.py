"""Honest clients of a task of their own, whose rounds must go on whatever strangers do meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.trivial_client import DownloadOnce, take_part
from fedlens_proto.v1 import admission_pb2
from tests.integration.hostile.plain_server import PlainServer, exchange
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.http.running import creation, head, trained

CLIENTS, GOAL = 4, 3
TASK = "honest"


class HonestRounds:
    """Clients that take part in one round after the other."""

    def __init__(self, server: PlainServer) -> None:
        self._server = server
        self._changed = asyncio.Condition()
        self._newest = 0
        self.running: list[asyncio.Task[None]] = []

    @property
    def committed(self) -> int:
        (task,) = (each for each in self._server.admin.tasks() if each.name == TASK)
        return task.rounds_committed

    async def note(self, number: int) -> None:
        async with self._changed:
            self._newest = max(self._newest, number)
            self._changed.notify_all()

    async def go_on(self, rounds: int = 3, within_s: float = 60.0) -> None:
        """Return when so many further rounds have begun, which the commits of those before have opened."""
        before = await asyncio.to_thread(lambda: self.committed)
        async with asyncio.timeout(within_s), self._changed:
            wanted = self._newest + rounds + 1
            await self._changed.wait_for(lambda: self._newest >= wanted or self._ended())
        after = await asyncio.to_thread(lambda: self.committed)
        assert not self._ended(), self.running
        assert after - before >= rounds

    def _ended(self) -> bool:
        return any(each.done() for each in self.running)


@asynccontextmanager
async def honest_rounds(server: PlainServer, features: int = 3, **settings: Any) -> AsyncIterator[HonestRounds]:
    """Honest clients that are at work, each from this machine's own address; they end with the context."""
    await create(server, TASK, tiny_bundle(features), goal=GOAL, **settings)
    role = admission_pb2.TOKEN_ROLE_TRAINER
    token = (await asyncio.to_thread(server.admin.create_token, TASK, role, max_uses=CLIENTS)).secret
    downloads = server.process.folder / "downloads"
    downloads.mkdir()
    cache, rounds, blob = DownloadOnce(downloads), HonestRounds(server), trained(features)

    def upload(_: int, number: int) -> bytes | Path:
        noting.create_task(rounds.note(number))
        return blob

    async with asyncio.TaskGroup() as noting:
        url = server.process.url
        rounds.running += [asyncio.create_task(take_part(url, token, i, cache, upload)) for i in range(CLIENTS)]
        try:
            await rounds.go_on(1)
            yield rounds
        finally:
            for each in rounds.running:
                each.cancel()
            await asyncio.gather(*rounds.running, return_exceptions=True)


async def create(server: PlainServer, name: str, bundle: TinyBundle, **settings: Any) -> None:
    """A task without end that takes the clients that come."""
    profile = server.process.profile
    bearer = f"Bearer {profile.token}"
    for content in bundle.parts:
        path = f"/v1/admin/parts/{sha256(content).hexdigest()}"
        answer = await exchange(profile.url, head(bearer, path, len(content)) + content, "PUT")
        assert answer.status == 204, answer
    # As many places as updates are wanted: nobody comes too late.
    numbers = {"rounds": 10**6, "over_selection": 1, "rest": 0, "patience_s": 0, "canary": 0}
    given = {"population": None, "selection": "arrivals", **numbers}
    body = creation(bundle, name, **(given | settings))
    answer = await exchange(profile.url, head(bearer, "/v1/admin/tasks", len(body), method="POST") + body)
    assert answer.status == 200, answer
