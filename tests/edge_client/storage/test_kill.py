"""Clients that are killed in the middle of a round: the next process goes on, and the server gets the same bytes."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2
from tests.edge_client.fakes import FakeServer, fedavg_plan, hang_up, keep_all, parse_body, start_of, train
from tests.edge_client.federation import Federation
from tests.edge_client.linear import make_bundle

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("photos")


def plan() -> assignment_pb2.LocalPlan:
    """Goes on from the client state, at first from the initial weights, and sends and keeps what it trained."""
    result = fedavg_plan(3)
    start_of(result).CopyFrom(assignment_pb2.Source(state="mine", download="initial"))
    keep_all(result, "mine")
    return result


def two_trainings() -> assignment_pb2.LocalPlan:
    """Trains twice, keeps both results and sends both."""
    result = plan()
    result.instructions.append(train("second", "trained", epochs=1))
    result.keeps.add(state="also-mine", value="second")
    result.uploads.add(name="second", value="second", codec=assignment_pb2.CODEC_FLOAT32)
    return result


async def start(server: FakeServer, folder: Path, *more: str) -> asyncio.subprocess.Process:
    arguments = (server.url, str(folder / "killed"), str(folder / "photos"), *more)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.edge_client.one_round", *arguments, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )


async def one_round(server: FakeServer, folder: Path, *more: str) -> None:
    process = await start(server, folder, *more)
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


async def nothing(request: web.Request) -> None:
    """No part of a request is carried out before the kill."""


async def killed_at(
    server: FakeServer, folder: Path, what: str, first: Callable[[web.Request], Awaitable[object]] = nothing
) -> None:
    """Start a client and kill it while it waits for the response to a request, after `first` has been done with it."""
    waiting, killed = asyncio.Event(), asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        await first(request)
        waiting.set()
        await killed.wait()
        return await hang_up(request)

    server.troubles.append((what, silent))
    process = await start(server, folder)
    await waiting.wait()
    process.kill()
    await process.communicate()
    killed.set()


# 2 x 20,000 float32 weights are more than a row of the outbox takes, so that both uploads are files.
@pytest.mark.parametrize(
    ("stored_before", "features", "given"), [(False, 3, plan()), (True, 20_000, two_trainings())], ids=["row", "files"]
)
async def test_a_client_killed_between_training_and_receipt_delivers_the_same_bytes_once(
    federation: Federation, tmp_path: Path, stored_before: bool, features: int, given: assignment_pb2.LocalPlan
) -> None:
    bundle = make_bundle(tmp_path / "bundle", features=features)
    undisturbed = await federation.run(given, bundle=bundle)

    async with FakeServer(bundle, given) as server:
        await killed_at(server, tmp_path, "update", server.store_update if stored_before else nothing)
        await one_round(server, tmp_path, "no-training")

    assert server.updates == undisturbed.updates
    assert server.calls["update"] == 2


@pytest.mark.slow
async def test_a_client_killed_while_it_fetches_takes_part_after_all(bundle: Bundle, tmp_path: Path) -> None:
    async def begin(request: web.Request) -> None:
        response = web.StreamResponse()
        response.content_length = len(bundle.raw)
        await response.prepare(request)
        await response.write(bundle.raw[:100])

    async with FakeServer(bundle, plan()) as server:
        await killed_at(server, tmp_path, "blob", begin)
        await one_round(server, tmp_path)

    assert list(server.updates) == [1]


@pytest.mark.slow
async def test_a_client_killed_between_two_rounds_keeps_its_state(federation: Federation, tmp_path: Path) -> None:
    undisturbed = await federation.run(plan(), rounds=2)

    async with federation.server(plan(), rounds=2) as server:
        await one_round(server, tmp_path)
        await killed_at(server, tmp_path, "check-in")
        await one_round(server, tmp_path)

    assert server.updates == undisturbed.updates


@pytest.mark.slow
async def test_a_client_killed_between_two_instructions_delivers_all_blobs_once_with_all_its_state(
    federation: Federation, tmp_path: Path
) -> None:
    undisturbed = await federation.run(two_trainings(), rounds=2)

    async with federation.server(two_trainings(), rounds=2) as server:
        dying = await start(server, tmp_path, "dies-in-second")
        await dying.communicate()
        sent_before = server.calls["update"]
        await one_round(server, tmp_path)
        await killed_at(server, tmp_path, "update")
        await one_round(server, tmp_path, "no-training")

    assert (dying.returncode, sent_before) == (-signal.SIGKILL, 0)
    assert [len(parse_body(body)[1]) for body in server.updates.values()] == [2, 2]
    # The second round starts from what the first has kept: one file of state without the other would show here.
    assert server.updates == undisturbed.updates
    assert server.calls["update"] == 3
