"""Places over HTTP: given to who asks, to a poll that is held, and back when a deadline is over."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from fedlens_proto.v1 import admin_pb2, check_in_pb2
from tests.server.bundles import tiny_bundle
from tests.server.http.running import Client, Server, until
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
