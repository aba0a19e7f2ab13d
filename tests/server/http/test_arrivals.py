"""Places over HTTP: given to who asks, to a poll that is held, and back when a deadline is over."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from fedlens_proto.v1 import admin_pb2, check_in_pb2
from fedlens_server.engine import assignments
from fedlens_server.engine.view import Federation
from tests.server.bundles import tiny_bundle
from tests.server.http.running import Client, Server, trained, until, update
from tests.server.http.test_long_polls import held


async def arrivals(server: Server, **settings: Any) -> list[Client]:
    """A task with one place a round, and three clients."""
    given = {"goal": 1, "over_selection": 1, "min_reports": 1, "rest": 0, **settings}
    await server.create(tiny_bundle(), population=None, selection="arrivals", **given)
    return [await server.client(index) for index in (1, 2, 3)]


async def test_a_job_that_does_not_wait_gets_a_place_at_once(server: Server) -> None:
    first, second, _ = await arrivals(server)

    given, full = await first.check_in(), await second.check_in()

    assert given.HasField("assignment")
    assert full.wait.reason == check_in_pb2.WAIT_REASON_NEXT_ROUND


async def test_a_held_poll_gets_a_place_in_the_next_round(server: Server) -> None:
    first, second, _ = await arrivals(server)
    assignment = await first.assignment()
    poll = await held(second)

    await first.upload(assignment)

    assert (await poll).assignment.round == 2


async def test_a_held_poll_gets_the_place_of_a_member_that_is_late(server: Server) -> None:
    first, second, _ = await arrivals(server, member_deadline_s=60)
    await first.assignment()
    poll = await held(second)

    server.clock.wind(60)

    assert (await poll).assignment.round == 1


async def test_a_held_poll_that_rests_gets_a_place_that_stays_free(server: Server) -> None:
    first, _, _ = await arrivals(server, rest=5, patience_s=10)
    await first.upload(await first.assignment())
    poll = await held(first)
    await until(lambda: server.service.federation.tasks[1].round.free_since is not None)

    server.clock.wind(10)

    assert (await poll).assignment.round == 2


@pytest.mark.parametrize("ended", [False, True])
async def test_an_update_after_the_end_is_refused_and_noted(server: Server, ended: bool) -> None:
    first, second, _ = await arrivals(server, over_selection=2, rounds=1 if ended else 3)
    late, early = await first.assignment(), await second.assignment()
    await second.upload(early)
    poll = await held(second)
    await poll

    answer = await first.upload(late)

    assert answer.outcome == (409, "round-closed")
    members = {member.client_id: member.state for member in (await server.show()).rounds[0].members}
    assert members == {first.id: admin_pb2.MEMBER_STATE_LATE, second.id: admin_pb2.MEMBER_STATE_REPORTED}


async def test_the_place_of_a_client_that_has_gone_away_is_given_to_another(server: Server) -> None:
    first, gone, other = await arrivals(server, member_deadline_s=60)
    await first.assignment()
    poll = await held(gone)
    poll.cancel()
    with suppress(asyncio.CancelledError):
        await poll

    server.clock.wind(60)
    current = server.service.federation.tasks[1].round
    assert current is not None
    await until(lambda: gone.id in current.members)

    assert (await other.assignment()).round == 1


async def test_a_round_that_opens_wakes_only_those_who_get_a_place(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counter[bytes]()
    check_in = assignments.check_in

    def counted(federation: Federation, client: bytes, request: check_in_pb2.CheckInRequest) -> Any:
        asked[client] += 1
        return check_in(federation, client, request)

    monkeypatch.setattr(assignments, "check_in", counted)
    clients = await arrivals(server, goal=2)
    members = [await client.assignment() for client in clients[:2]]
    waiting = [clients[2], *[await server.client(index) for index in range(10, 20)]]
    polls = [await held(client) for client in waiting]
    asked.clear()

    for client, assignment in zip(clients, members, strict=False):
        await client.upload(assignment)
    await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    await until(lambda: len(server.service.polls) == 9)

    given = {client.id for client, poll in zip(waiting, polls, strict=True) if poll.done()}
    assert asked == dict.fromkeys(given, 1)
    assert len(given) == 2


async def test_an_update_whose_last_byte_comes_after_the_end_is_noted(server: Server) -> None:
    features = 200_000
    first, second = [await server.client(index) for index in (1, 2)]
    await server.create(
        tiny_bundle(features), population=None, selection="arrivals", goal=1, over_selection=2, rounds=2
    )
    late, early = await first.assignment(), await second.assignment()
    body, go_on = update(late, trained(features)), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield body[:1_000_000]
        await go_on.wait()
        yield body[1_000_000:]

    federation = server.service.federation
    upload = asyncio.create_task(first.upload(late, slowly(), Content_Length=str(len(body))))
    await until(lambda: bool(server.temporary_files()))
    await second.upload(early, update(early, trained(features)))
    await until(lambda: federation.tasks[1].next_round == 3)
    go_on.set()

    assert (await upload).outcome == (409, "round-closed")
    members = {member.client_id: member.state for member in (await server.show()).rounds[0].members}
    assert members[first.id] == admin_pb2.MEMBER_STATE_LATE
