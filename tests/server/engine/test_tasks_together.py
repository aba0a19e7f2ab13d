"""Several tasks on one server: what happens in one, and what its clients do, holds up no other one."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedlens_proto.v1 import admin_pb2, check_in_pb2, update_pb2
from fedlens_server.engine import updates
from fedlens_server.methods import METHODS, fedavg
from fedlens_server.planning.method import Method, MethodDefinition, TaskPlan
from tests.server.bundles import tiny_bundle
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ALICE, BOB, CAROL, DAVE, PHONE, SEED, client_ids

DRAWN = {"method": "fedavg", "rounds": 3, "population": 2, "cohort": "all", "seed": SEED, "deadline_s": 86_400}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    with closing(Arrivals(tmp_path / "together")) as found:
        found.enrol([ALICE, BOB, CAROL, DAVE])
        yield found


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a method that cannot say what a client downloads."""

    def for_task(task: TaskPlan) -> Method:
        def download(*_: Any) -> None:
            raise KeyError("no such client")

        return replace(fedavg.for_task(task), download=download)

    monkeypatch.setitem(METHODS, "failing", MethodDefinition(for_task))
    return "failing"


def task_of(server: Arrivals, client: bytes, **fields: Any) -> int:
    """The task in which a client that comes has a place; 0: none."""
    (response,) = server.come(client, **fields)
    return response.assignment.task


def test_a_method_that_fails_for_its_clients_ends_its_own_task_and_takes_no_other_ones_places(
    server: Arrivals, failing: str
) -> None:
    server.take(method=failing, name="broken", goal=4, max_consecutive_abandoned=3)
    server.take(name="sound", goal=4)
    for client in (ALICE, BOB, CAROL):
        assert task_of(server, client) == 2
        server.advance()

    broken = server.federation.tasks[1]
    assert broken.state == admin_pb2.TASK_STATE_FAILED
    assert "rounds abandoned in a row: 3" in broken.reason and "no such client" in broken.reason
    assert task_of(server, DAVE) == 2


def test_a_client_comes_back_when_the_first_of_its_tasks_may_have_work(server: Arrivals) -> None:
    server.take(name="for large albums", eligible={"num_examples": 1000})
    server.take(name="full", goal=1)
    assert task_of(server, ALICE) == 2

    (waits,) = server.come(BOB)

    assert waits.wait.reason == check_in_pb2.WAIT_REASON_NEXT_ROUND
    assert waits.wait.retry_after_ms <= 1.5 * 60_000  # and not the hour of the first task


def test_the_clients_of_a_task_that_draws_its_members_do_not_all_ask_every_second(server: Arrivals) -> None:
    server.create(json.dumps({**DRAWN, "population": 1000}), [tiny_bundle()], "drawn")
    few = server.check_in(ALICE).wait.retry_after_ms
    server.enrol([client for client in client_ids(900) if client not in (ALICE, BOB, CAROL, DAVE)])

    many = server.check_in(ALICE).wait.retry_after_ms

    assert (few, many) == (2000, 9000)


def test_a_drawn_member_that_can_run_its_task_no_more_gets_work_elsewhere(server: Arrivals) -> None:
    formats = tiny_bundle().parsed.programs[0].files[0].format, PHONE.formats[0]
    server.create(json.dumps(DRAWN), [tiny_bundle()], "drawn")
    server.settle()
    server.take(tiny_bundle(formats=formats, model="for both"), name="arrivals")
    assert server.federation.tasks[1].round is not None
    member = next(iter(server.federation.tasks[1].round.members))

    server.enrol([member], capabilities=PHONE)  # as after an update of its app

    assert task_of(server, member) == 2


def test_clients_that_fail_at_once_do_not_end_a_task(server: Arrivals) -> None:
    crowd = client_ids(40)
    server.enrol(crowd)
    server.take(goal=2, rest=0, rounds=5, max_consecutive_abandoned=2)
    broken, sound = crowd[:12], crowd[12:]
    reason = update_pb2.FAILURE_REASON_INTERNAL
    minutes = 0
    while server.task.state == admin_pb2.TASK_STATE_RUNNING and minutes < 300:
        minutes += 1
        for client in (*broken, *sound):
            (response,) = server.come(client)
            given = response.assignment
            if response.HasField("assignment") and client in broken:
                updates.accept_failure(server.federation, client, given.task, given.round, reason, "").result()
            elif response.HasField("assignment"):
                server.report(client)
            server.advance()
        server.clock.wind(60)

    assert (server.task.state, server.task.committed) == (admin_pb2.TASK_STATE_FINISHED, 5)


def test_a_client_whose_connection_breaks_has_not_left_its_place(server: Arrivals) -> None:
    server.take(goal=1)
    for _ in range(3):
        assert task_of(server, ALICE) == 1
        server.places.give_back(ALICE)

    assert task_of(server, ALICE) == 1
    assert server.task.participations[ALICE].misses == 0


def test_a_task_whose_clients_are_used_up_goes_on_with_a_new_one(server: Arrivals) -> None:
    server.create(
        json.dumps({**DRAWN, "cohort": 4, "population": 4, "max_participations": 1}), [tiny_bundle()], "drawn"
    )
    server.settle()
    for client in (ALICE, BOB, CAROL, DAVE):
        server.report(client)
    server.advance()
    assert server.task.round is None
    (eve,) = {*client_ids(5)} - {ALICE, BOB, CAROL, DAVE}
    server.enrol([eve], capabilities=PHONE)  # which cannot run it
    assert server.task.round is None

    server.enrol([eve])

    assert server.task.round is not None and list(server.task.round.members) == [eve]
