"""A client may die at any moment: its update arrives once, as if nothing had happened."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.integration import federation
from tests.integration.processes import ServerProcess


async def run_dying(server: ServerProcess, folder: Path, photos: Path, when: str) -> int:
    """Run client 0 in a process of its own; gives the exit status."""
    module = "tests.integration.dying_client"
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, server.url, folder, photos, when)
    return await process.wait()


async def run_pair(server: ServerProcess, folder: Path, photos: Path, *lives: str) -> list[int]:
    """Client 0 through its lives, client 1 beside it; gives the exit status of each life."""

    async def live_and_die() -> list[int]:
        return [await run_dying(server, folder, photos, when) for when in lives]

    async def other() -> None:
        async with federation.client(server, folder, photos, 1, 2) as member:
            await member.run()

    statuses, _ = await asyncio.gather(live_and_die(), other())
    return statuses


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_update_arrives_once_when_its_client_is_killed(
    tmp_path: Path, photos: Path, bundle: Path, server: ServerProcess, when: str
) -> None:
    federation.create_task(server, bundle, rounds=1, clients=2)

    statuses = await run_pair(server, tmp_path, photos, when, "never")

    assert statuses == [-signal.SIGKILL, 0]
    first = server.task("show", "digits")["rounds"][0]
    assert [member["state"] for member in first["members"]] == ["reported", "reported"]
    federation.create_task(server, bundle, rounds=1, clients=2, name="calm")
    assert await run_pair(server, tmp_path, photos, "never") == [0]
    killed = federation.final_blob(server, tmp_path)
    assert killed == federation.final_blob(server, tmp_path, "calm")
