"""Places over HTTP: given to who asks, to a poll that is held, and back when a deadline is over."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from fedlens_proto.v1 import admin_pb2, check_in_pb2, update_pb2
from fedlens_server.engine import aggregation, assignments
from fedlens_server.engine.arrivals import obstacles, participation
from fedlens_server.engine.cohorts.members import RoundKey
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.http.driver import FAILURE_PAUSE_S
from tests.server.bundles import tiny_bundle
from tests.server.http.running import BAN, Client, Server, round_path, trained, until, update
from tests.server.http.test_long_polls import held


async def arrivals(server: Server, **settings: Any) -> list[Client]:
    """A task with one place a round, and three clients."""
    given = {"goal": 1, "over_selection": 1, "canary": 0, "min_reports": 1, "rest": 0, **settings}
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


async def test_held_polls_get_places_as_soon_as_the_last_canary_has_reported(server: Server) -> None:
    first, second, third = await arrivals(server, goal=3, canary=1)
    assignment = await first.assignment()
    polls = [await held(second), await held(third)]
    assert not any(poll.done() for poll in polls)

    await first.upload(assignment)

    assert [(await poll).assignment.round for poll in polls] == [1, 1]


async def test_a_held_poll_that_rests_gets_a_place_that_stays_free(server: Server) -> None:
    first, _, _ = await arrivals(server, rest=5, patience_s=10)
    await first.upload(await first.assignment())
    poll = await held(first)
    await until(lambda: server.service.federation.tasks[1].round.free_since is not None)

    server.clock.wind(10)

    assert (await poll).assignment.round == 2


async def test_a_place_may_be_given_while_its_time_is_looked_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, _ = await arrivals(server, rest=5)
    await first.upload(await first.assignment())
    poll = await held(first)
    places, task = server.service.places, server.service.federation.tasks[1]
    await until(lambda: task.round.free_since is not None)
    patiences, given = participation.patiences, list[Task]()

    def given_meanwhile(of: Task) -> list[float]:
        given.append(of)
        task.round.free_since = None
        return list(patiences(of))

    monkeypatch.setattr(participation, "patiences", given_meanwhile)

    assert places.next_look() > 0
    assert given == [task]
    poll.cancel()


async def test_a_client_that_is_forgotten_while_it_asks_is_answered(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, _ = await arrivals(server)
    await first.upload(await first.assignment())
    task = server.service.federation.tasks[1]

    def forgotten_meanwhile(*_: object) -> int:
        task.participations.pop(first.id, None)
        return check_in_pb2.WAIT_REASON_SITS_OUT

    monkeypatch.setattr(obstacles, "obstacle", forgotten_meanwhile)

    assert (await first.check_in()).wait.reason == check_in_pb2.WAIT_REASON_SITS_OUT


async def test_rounds_go_on_after_a_look_at_them_has_failed(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = await arrivals(server)
    service, failures = server.service, list[str]()

    def fails(_: Federation) -> list[RoundKey]:
        failures.append("the round is not looked at")
        raise TypeError("what cannot be foreseen")

    with monkeypatch.context() as patched:
        patched.setattr(aggregation, "due", fails)
        await first.upload(await first.assignment())
        await until(lambda: bool(failures))
        for _ in range(3):
            service.federation.changed(due=True)
            assert (await first.check_in()).HasField("wait")
        assert len(failures) == 1
    server.clock.wind(FAILURE_PAUSE_S)

    assert (await second.assignment()).round == 2
    assert caplog.text.count("rounds could not be looked at") == 1


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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """How often the engine was asked for the response to each client's check-in."""
    found = Counter[bytes]()
    check_in = assignments.check_in

    def counted(federation: Federation, client: bytes, request: check_in_pb2.CheckInRequest) -> Any:
        found[client] += 1
        return check_in(federation, client, request)

    monkeypatch.setattr(assignments, "check_in", counted)
    return found


async def waiting(server: Server, count: int) -> dict[bytes, "asyncio.Task[check_in_pb2.CheckInResponse]"]:
    """Held check-ins of so many further clients, by client."""
    clients = [await server.client(index) for index in range(10, 10 + count)]
    return {client.id: await held(client) for client in clients}


async def answered(
    server: Server, polls: dict[bytes, "asyncio.Task[check_in_pb2.CheckInResponse]"], count: int
) -> dict[bytes, int]:
    """The clients that were given a place once so many were, each with 1; all others are held."""
    await until(lambda: sum(poll.done() for poll in polls.values()) >= count)
    assert len(server.service.polls) == len(polls) - count
    done = {client: poll.result() for client, poll in polls.items() if poll.done()}
    assert all(answer.HasField("assignment") for answer in done.values())
    return dict.fromkeys(done, 1)


async def test_a_round_that_opens_wakes_only_those_who_get_a_place(asked: Counter[bytes], server: Server) -> None:
    members = await arrivals(server, goal=1, over_selection=3)
    assignment, *_ = [await client.assignment() for client in members]
    polls = await waiting(server, 20)
    asked.clear()

    await members[0].upload(assignment)

    assert await answered(server, polls, 3) == asked


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_place_that_becomes_free_wakes_only_who_gets_it(
    asked: Counter[bytes], server: Server, leaves: bool
) -> None:
    first, *_ = await arrivals(server)
    assignment = await first.assignment()
    polls = await waiting(server, 10)
    asked.clear()

    if leaves:
        await server.admin("POST", f"/v1/admin/clients/{first.id.hex()}/ban", BAN)
    else:
        failed = update_pb2.FailureRequest(protocol=1, reason=update_pb2.FAILURE_REASON_NO_PHOTOS)
        await first.send("POST", f"{round_path(assignment)}/failure", failed.SerializeToString())

    assert await answered(server, polls, 1) == asked


async def test_the_end_of_a_task_wakes_all_who_wait(asked: Counter[bytes], server: Server) -> None:
    first, *_ = await arrivals(server)
    await first.assignment()
    polls = await waiting(server, 5)
    asked.clear()

    await server.admin("POST", "/v1/admin/tasks/demo/stop")

    assert {(await poll).WhichOneof("result") for poll in polls.values()} == {"finished"}
    assert asked == dict.fromkeys(polls, 1)


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
