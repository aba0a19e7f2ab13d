"""The floor of a round: an HTTP server that does nothing but move bytes, sync them and add them up.

    GET /model      the sum so far, once the round before has ended (held until then)
    PUT /update     streamed to a file and synced, or kept in memory when small; the last one of a round ends it

No protocol, no database, no checks, no digests: what any server written on this HTTP library has to do at least.
"""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import numpy as np
from aiohttp import web
from numpy.typing import NDArray

_SMALL_BYTES = 64 << 10


class BareRounds:
    """`clients` updates make a round."""

    def __init__(self, folder: Path, clients: int, model_bytes: int) -> None:
        """Files go into `folder`."""
        self.folder, self.clients = folder, clients
        self.model = folder / "model"
        self.model.write_bytes(bytes(model_bytes))
        self.updates: list[bytes | Path] = []
        self.round = asyncio.Condition()
        self.ended: list[float] = []

    async def get_model(self, request: web.Request) -> web.StreamResponse:
        """Answer when round `after` has ended."""
        after = int(request.query["after"])
        async with self.round:
            await self.round.wait_for(lambda: len(self.ended) >= after)
        return web.Response() if "empty" in request.query else web.FileResponse(self.model)

    async def put_update(self, request: web.Request) -> web.Response:
        """Store an update; the last one of a round sums up all of them."""
        if (request.content_length or 0) <= _SMALL_BYTES:
            self.updates.append(await request.read())
        else:
            path = self.folder / request.query["client"]
            with path.open("wb") as file:
                async for chunk in request.content.iter_chunked(1 << 18):
                    file.write(chunk)
                await asyncio.to_thread(os.fsync, file.fileno())
            self.updates.append(path)
        if len(self.updates) == self.clients:
            await asyncio.to_thread(self._sum)
            self.updates.clear()
            async with self.round:
                self.ended.append(time.time())
                self.round.notify_all()
        return web.Response()

    def _sum(self) -> None:
        total: NDArray[np.float32] | None = None
        for update in self.updates:
            data = (
                np.frombuffer(update, np.float32) if isinstance(update, bytes) else np.memmap(update, np.float32, "r")
            )
            total = data.copy() if total is None else np.add(total, data, out=total)
        assert total is not None
        with self.model.open("wb") as file:
            file.write(total.data)
            os.fsync(file.fileno())


def _serve(pipe: Connection, folder: Path, clients: int, model_bytes: int) -> None:
    async def run() -> None:
        rounds = BareRounds(folder, clients, model_bytes)
        app = web.Application(client_max_size=1 << 30)
        app.add_routes([web.get("/model", rounds.get_model), web.put("/update", rounds.put_update)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.to_thread(pipe.recv)
        pipe.send(rounds.ended)
        await runner.cleanup()

    asyncio.run(run())


@contextmanager
def bare_serving(folder: Path, clients: int, model_bytes: int) -> Iterator[tuple[str, int, list[float]]]:
    """Start the bare server; gives its address, its process id and a list, filled at the end with the rounds' ends."""
    folder.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, folder, clients, model_bytes))
    process.start()
    there.close()  # so that a server that dies is an end of file here
    assert process.pid is not None
    ended: list[float] = []
    try:
        yield f"http://127.0.0.1:{here.recv()}", process.pid, ended
        here.send("stop")
        ended.extend(here.recv())
    finally:
        process.join(10)
        process.kill()


async def take_part_barely(url: str, clients: int, rounds: int, blobs: list[Path] | bytes, shared: bool) -> None:
    """`clients` clients that download (with `shared`: one for all) and upload, `rounds` times."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def one(index: int) -> None:
            for number in range(rounds):
                wanted = "" if index == 0 or not shared else "&empty"
                async with session.get(f"{url}/model?after={number}{wanted}") as answer:
                    async for _ in answer.content.iter_chunked(1 << 18):
                        pass
                if isinstance(blobs, bytes):
                    await _put(session, f"{url}/update?client={index}", blobs)
                else:
                    path = blobs[(index + clients * number) % len(blobs)]
                    with path.open("rb") as file:
                        await _put(session, f"{url}/update?client={index}", file)

        await asyncio.gather(*(one(index) for index in range(clients)))


async def _put(session: aiohttp.ClientSession, url: str, data: object) -> None:
    async with session.put(url, data=data) as answer:
        answer.raise_for_status()
