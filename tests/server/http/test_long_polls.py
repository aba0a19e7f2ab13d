"""Check-ins that are held: woken by work, ended by a newer one, by a stop, or by the caps."""

import asyncio
from concurrent.futures import Future
from pathlib import Path

import pytest

from fedlens_proto.v1 import check_in_pb2, enrolment_pb2
from fedlens_server.http.long_polls import Polls
from tests.server.bundles import tiny_bundle
from tests.server.http.running import BAN, Client, Server, running, until

LONG_MS = 20_000


async def held(client: Client, hold_ms: int = LONG_MS, task: int = 0) -> "asyncio.Task[check_in_pb2.CheckInResponse]":
    """A check-in that the server holds by now."""
    polls = client.server.service.polls
    before = len(polls)
    poll = asyncio.create_task(client.check_in(hold_ms, task))
    await until(lambda: len(polls) > before)
    return poll


async def test_a_held_check_in_is_answered_when_the_population_is_there(server: Server) -> None:
    await server.create(tiny_bundle())
    first = await server.client(1)

    poll = await held(first)
    await server.client(2)

    assert (await poll).WhichOneof("result") == "assignment"


@pytest.mark.parametrize(("rounds", "expected"), [(1, ("finished", 0)), (2, ("assignment", 2))])
async def test_a_held_check_in_is_answered_when_the_round_ends(
    server: Server, rounds: int, expected: tuple[str, int]
) -> None:
    first, assignment = await server.member(population=2, rounds=rounds)
    await first.upload(assignment)

    poll = await held(first)
    await (await server.client(2)).upload(assignment)

    answer = await poll
    assert (answer.WhichOneof("result"), answer.assignment.round) == expected


async def test_a_deadline_closes_the_round_without_anybody_asking(server: Server) -> None:
    first, assignment = await server.member(population=2, deadline_s=60)
    await first.upload(assignment)

    poll = await held(first)
    server.clock.wind(61)

    assert (await poll).assignment.round == 2


async def test_a_newer_check_in_ends_the_older_one(server: Server) -> None:
    client = await server.client(1)
    older = await held(client)

    newer = asyncio.create_task(client.check_in(LONG_MS))

    answer = await older
    assert answer.wait.reason == check_in_pb2.WAIT_REASON_SUPERSEDED
    assert not newer.done()
    newer.cancel()


async def test_the_time_that_a_check_in_is_held_is_capped(tmp_path: Path) -> None:
    async with running(tmp_path, max_hold_ms=20) as server:
        client = await server.client(1)

        answer = await client.check_in(hold_ms=4_000_000_000)

        assert answer.wait.reason == check_in_pb2.WAIT_REASON_NO_TASK
        assert len(server.service.polls) == 0


async def test_the_number_of_held_check_ins_is_capped(tmp_path: Path) -> None:
    async with running(tmp_path, max_polls=1) as server:
        first, second = await server.client(1), await server.client(2)
        poll = await held(first)

        answer = await second.check_in(LONG_MS)

        assert answer.wait.reason == check_in_pb2.WAIT_REASON_BUSY
        assert answer.wait.retry_after_ms > 0
        poll.cancel()


async def test_a_held_check_in_is_answered_when_the_server_stops(server: Server) -> None:
    poll = await held(await server.client(1))

    server.service.stop_accepting()

    answer = await poll
    assert answer.wait.reason == check_in_pb2.WAIT_REASON_STOPPING
    assert answer.wait.retry_after_ms > 0


@pytest.mark.parametrize(("forgets", "outcome"), [(False, (403, "forbidden")), (True, (401, "unauthorised"))])
async def test_a_client_that_is_shut_out_while_it_waits_is_told_at_once(
    server: Server, forgets: bool, outcome: tuple[int, str]
) -> None:
    await server.create(tiny_bundle())
    client = await server.client(1)
    request = check_in_pb2.CheckInRequest(protocol=1, hold_ms=LONG_MS).SerializeToString()
    poll = asyncio.create_task(client.send("POST", "/v1/check-in", request))
    await until(lambda: len(server.service.polls) == 1)

    if forgets:
        await client.send("DELETE", "/v1/clients/self", enrolment_pb2.ForgetRequest(protocol=1).SerializeToString())
    else:
        await server.admin("POST", f"/v1/admin/clients/{client.id.hex()}/ban", BAN)

    await until(poll.done)  # sooner than the time for which it is held
    assert (await poll).outcome == outcome


async def test_a_check_in_for_one_task_is_not_woken_by_another(server: Server) -> None:
    bundle = tiny_bundle()
    one, two = await server.create(bundle, "one"), await server.create(bundle, "two", population=3)
    first = await server.client(1)

    poll = await held(first, task=two.id)
    second = await server.client(2)

    assert (await second.check_in(LONG_MS, task=one.id)).assignment.task == one.id
    assert not poll.done()
    await server.client(3)
    assert (await poll).assignment.task == two.id


async def test_many_check_ins_are_held_and_answered_together(server: Server) -> None:
    await server.create(tiny_bundle(), population=51)
    clients = [await server.client(index) for index in range(50)]
    polls = [await held(client) for client in clients]

    await server.client(50)

    answers = await asyncio.gather(*polls)
    assert {answer.WhichOneof("result") for answer in answers} == {"assignment"}


class Nobody:
    """Nobody finds a place."""

    def __init__(self, decided: "Future[None] | None" = None) -> None:
        self.decided = decided

    def ask(self, client_id: bytes, request: check_in_pb2.CheckInRequest) -> "Future[None] | None":
        return self.decided

    def hold(self, client: bytes, request: check_in_pb2.CheckInRequest) -> None:
        """There is none."""

    def release(self, client: bytes) -> None:
        """There was none."""


def wait() -> check_in_pb2.CheckInResponse:
    return check_in_pb2.CheckInResponse(wait=check_in_pb2.Wait(retry_after_ms=1))


async def test_of_check_ins_of_one_client_that_wait_for_a_place_together_one_is_held() -> None:
    polls, request, places = Polls(10, LONG_MS), check_in_pb2.CheckInRequest(hold_ms=LONG_MS), Nobody(Future())
    asking = [asyncio.create_task(polls.respond(b"client", request, wait, places)) for _ in range(3)]
    await asyncio.sleep(0)  # all have asked
    assert places.decided is not None
    places.decided.set_result(None)

    await until(lambda: sum(each.done() for each in asking) == 2)

    answers = [each.result().wait.reason for each in asking if each.done()]
    assert answers == [check_in_pb2.WAIT_REASON_SUPERSEDED] * 2
    assert len(polls) == 1
    polls.stop()
    await asyncio.gather(*asking)


async def test_a_stopping_server_has_500_clients_a_second_come_back() -> None:
    polls, request = Polls(2000, LONG_MS), check_in_pb2.CheckInRequest(hold_ms=LONG_MS)
    held = [asyncio.create_task(polls.respond(bytes([*divmod(i, 256)]), request, wait, Nobody())) for i in range(1000)]
    await until(lambda: len(polls) == 1000)
    polls.stop()
    told = [answer.wait.retry_after_ms for answer in await asyncio.gather(*held)]

    # 1,000 over 2 s, from 2 s on; a bucket of 0.25 s has 125 of them, give or take six deviations.
    assert 2000 <= min(told) <= max(told) <= 4000
    assert all(60 < sum(start <= each < start + 250 for each in told) < 190 for start in range(2000, 4000, 250))
