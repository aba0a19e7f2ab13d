"""A server restored from a backup that was made in the middle of a task, with the clients that have gone on since."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.integration import federation
from tests.integration.conftest import NewBundle
from tests.integration.processes import ServerProcess, run_fedlens

CLIENTS, ROUNDS = 3, 60
DATA = 'data = "data"'


# FedPer's clients have a state of their own, which is that of a later round than the restored server's.
@pytest.mark.long
async def test_clients_that_are_ahead_of_a_restored_server_go_on_with_it(
    tmp_path: Path, photos: Path, exported: NewBundle
) -> None:
    server = ServerProcess.prepared(tmp_path / "server")
    config = server.folder / "fedlens.toml"
    config.write_text(config.read_text().replace(DATA, f'{DATA}\nbackups = "backups"'))

    with server:
        bundle = exported("small", "cross_entropy")
        federation.create_task(server, bundle, "--method", "fedper", rounds=ROUNDS, clients=CLIENTS)
        clients = asyncio.create_task(federation.run_clients(server, tmp_path / "fleet", photos, CLIENTS))
        await committed(server, 1)
        profile = str(server.folder / "admin.toml")
        said = await asyncio.to_thread(run_fedlens, "backup", "--keep", "2", "--admin", profile)
        saved = said.partition(": ")[0]
        ahead = await committed(server, await committed(server, 1) + 2)
        await asyncio.to_thread(server.kill)

        restored = run_fedlens("restore", saved, "--data", str(server.folder / "restored"))
        config.write_text(config.read_text().replace(DATA, 'data = "restored"'))
        await asyncio.to_thread(server.start)
        behind = await committed(server, 0)
        await clients
        found: Any = server.task("show", "digits")

    assert behind < ahead
    assert "ago, is not in it" in restored
    assert found["task"]["state"] == "finished"
    assert [each["state"] for each in found["rounds"]] == ["committed"] * ROUNDS
    assert [len(each["members"]) for each in found["rounds"]] == [CLIENTS] * ROUNDS


async def committed(server: ServerProcess, rounds: int) -> int:
    """The number of committed rounds, once there are so many."""
    found = -1
    while found < rounds:
        shown: Any = await asyncio.to_thread(server.task, "show", "digits")
        found = int(shown["task"]["rounds_committed"])
    return found
