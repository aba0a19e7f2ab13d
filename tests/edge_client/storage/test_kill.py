import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from fedlens_edge_client import EdgeClient
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2
from tests.edge_client.fakes import FakeServer, fedavg_plan, hang_up
from tests.edge_client.linear import make_bundle

ROOT = Path(__file__).parents[3]


async def start(server: FakeServer, folder: Path, *more: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.edge_client.one_round",
        server.url,
        str(folder / "killed"),
        str(folder / "photos"),
        *more,
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )


def plan() -> assignment_pb2.LocalPlan:
    """Like FedAvg, and keeps what it trained."""
    result = fedavg_plan(3)
    result.keep.add(set="mine")
    return result


# 2 x 20,000 float32 weights are more than a row of the outbox takes, so that they are a file.
@pytest.mark.parametrize(("stored_before", "features"), [(False, 3), (True, 20_000)])
async def test_a_client_killed_between_training_and_receipt_delivers_the_same_bytes_once(
    client_of: Callable[..., EdgeClient], tmp_path: Path, stored_before: bool, features: int
) -> None:
    bundle = make_bundle(tmp_path / "bundle", features=features)
    async with FakeServer(bundle, plan()) as server, client_of(server.url, state=tmp_path / "calm") as client:
        await client.run_once()
    expected = server.updates[1]

    async with FakeServer(bundle, plan()) as server:
        uploading, killed = asyncio.Event(), asyncio.Event()
        store = server._update

        async def silent(request: web.Request) -> web.StreamResponse:
            if stored_before:
                await store(request)
            uploading.set()
            await killed.wait()
            return await hang_up(request)

        server.troubles.append(("update", silent))
        process = await start(server, tmp_path)
        await uploading.wait()
        process.kill()
        await process.communicate()
        killed.set()
        second = await start(server, tmp_path, "no-training")
        _, errors = await second.communicate()

    assert (second.returncode, errors) == (0, b"")
    assert list(server.updates.values()) == [expected]
    assert server.calls["update"] == 2


@pytest.mark.usefixtures("photos")
async def test_a_client_killed_while_it_fetches_takes_part_after_all(bundle: Bundle, tmp_path: Path) -> None:
    async with FakeServer(bundle, plan()) as server:
        fetching, killed = asyncio.Event(), asyncio.Event()

        async def half(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            response.content_length = len(bundle.raw)
            await response.prepare(request)
            await response.write(bundle.raw[:100])
            fetching.set()
            await killed.wait()
            return await hang_up(request)

        server.troubles.append(("blob", half))
        process = await start(server, tmp_path)
        await fetching.wait()
        process.kill()
        await process.communicate()
        killed.set()
        second = await start(server, tmp_path)
        _, errors = await second.communicate()

    assert (second.returncode, errors) == (0, b"")
    assert list(server.updates) == [1]
