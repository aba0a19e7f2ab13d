"""Rounds that take the clients that come, with a real server and real clients, beside many that have left."""

from pathlib import Path

import pytest

from fedlens_edge_client.client.http_transport import HttpTransport
from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.training.requirements import capabilities
from tests.integration.federation import run_clients, secret, tiny_bundle
from tests.integration.processes import ServerProcess

HERE, GONE, GOAL, ROUNDS = 4, 40, 3, 5


async def enrol_and_leave(server: ServerProcess, index: int) -> None:
    transport = HttpTransport(server.url, secret(index), ca=server.ca)
    try:
        await transport.enrol(server.token("trainer"), capabilities(EngineName.TORCH))
    finally:
        await transport.close()


@pytest.mark.slow
async def test_rounds_do_not_wait_for_clients_that_have_left(
    tmp_path: Path, photos: Path, server: ServerProcess
) -> None:
    tiny_bundle(tmp_path / "bundle")
    numbers = ["--rounds", str(ROUNDS), "--goal", str(GOAL), "--min-reports", str(GOAL)]
    server.task("create", "digits", "--bundle", str(tmp_path / "bundle"), "--set", "patience_s=0", *numbers)
    for index in range(HERE, HERE + GONE):
        await enrol_and_leave(server, index)

    await run_clients(server, tmp_path / "fleet", photos, HERE)

    shown = server.task("show", "digits")
    assert shown["task"]["state"] == "finished"  # type: ignore[index]
    counts = [found["counts"]["reported"] for found in shown["rounds"]]  # type: ignore[attr-defined]
    assert len(counts) == ROUNDS
    assert min(counts) == GOAL
