"""Receipts over HTTP: deleted by the server itself, some days after their round."""

from math import inf
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from fedlens_server.engine import garbage
from fedlens_server.store import schema
from tests.server.bundles import tiny_bundle
from tests.server.fakes import disk_full
from tests.server.http.running import Client, Server, running, until

DAY_S = 86400.0


def receipts(server: Server) -> list[int]:
    """The rounds of which rows of members are stored, ascending, each as often as it has some."""
    return sorted(row.round for row in server.service.store.read(select(schema.members.c.round)))


async def reported(server: Server, members: int = 1) -> tuple[Client, Any]:
    """One of the clients whose updates ended the first round, and the assignment that it answered."""
    settings = {"population": None, "selection": "arrivals", "goal": members, "over_selection": 1, "rest": 0}
    await server.create(tiny_bundle(), **settings)
    for index in range(members):
        client = await server.client(index)
        assignment = await client.assignment()
        await client.upload(assignment)
    await until(lambda: server.service.federation.tasks[1].next_round == 3)
    return client, assignment


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times up to which receipts were deleted."""
    found: list[float] = []
    delete = garbage.delete_receipts

    def noted(federation: Any, before: float) -> Any:
        found.append(before)
        return delete(federation, before)

    monkeypatch.setattr(garbage, "delete_receipts", noted)
    return found


async def test_receipts_are_deleted_when_their_time_is_over_and_not_looked_at_before(
    calls: list[float], server: Server
) -> None:
    client, assignment = await reported(server)
    server.clock.wind(29 * DAY_S)
    again = await client.upload(assignment)
    looks = len(calls)

    server.clock.wind(DAY_S)
    await until(lambda: not receipts(server))

    assert (again.status, looks) == (200, 1)
    await until(lambda: len(calls) == 2)
    assert (await client.upload(assignment)).outcome == (409, "round-closed")
    assert [round.unlisted[0].members for round in (await server.show()).rounds[:1]] == [1]


async def test_many_receipts_are_deleted_one_transaction_after_the_other(
    calls: list[float], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "MAX_RECEIPTS", 2)
    await reported(server, members=5)

    server.clock.wind(30 * DAY_S)
    await until(lambda: not receipts(server))

    # At the start, then of two, two and one.
    await until(lambda: len(calls) == 1 + 3)


async def test_receipts_whose_time_was_over_while_the_server_stood_still_are_deleted_at_its_start(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as server:
        await reported(server)
        server.service.store.submit(_long_ago).result()
        assert receipts(server) == [1]

    async with running(tmp_path) as server:
        await until(lambda: not receipts(server))


async def test_a_full_disk_delays_the_deletion(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    await reported(server)
    tried: list[float] = []

    def full(federation: Any, before: float) -> None:
        tried.append(before)
        disk_full()

    monkeypatch.setattr(garbage, "delete_receipts", full)
    server.clock.wind(30 * DAY_S)
    await until(lambda: len(tried) == 1)
    monkeypatch.undo()
    assert receipts(server) == [1]

    server.clock.wind(5)

    await until(lambda: not receipts(server))


def _long_ago(transaction: Any) -> None:
    transaction.execute(schema.rounds.update().values(kept_from=0.0).where(schema.rounds.c.kept_from < inf))
