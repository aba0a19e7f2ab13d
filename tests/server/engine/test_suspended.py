"""A task whose method is missing when the server starts: nothing of it changes until the method is there again."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedlens_proto.v1 import admin_pb2, check_in_pb2
from fedlens_server.engine import assignments
from fedlens_server.engine.operators import history, rollback, tasks
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.errors import Unavailable
from tests.plugin_packages import HALF, METHODS, install, uninstall
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ALICE, BOB, CAROL, EVALUATORS, Bench, evaluation_of, update_of


@pytest.fixture
def half(bench: Bench, site: Path) -> Bench:
    """A task with a method of another package, in its first round, to which Alice has reported."""
    install(site, "half-way", METHODS, half_way=HALF)
    bench.start(method="half")
    bench.report(ALICE, 2.0)
    return bench


def without_the_package(bench: Bench, site: Path) -> None:
    uninstall(site, "half-way")
    bench.reopen()


def with_it_again(bench: Bench, site: Path) -> None:
    install(site, "half-way", METHODS)
    bench.reopen()


def test_an_open_round_goes_on_with_its_updates_when_the_method_is_back(half: Bench, site: Path) -> None:
    assignment = half.assignment(BOB)
    answer = update_of(assignment, {name: value + 2 for name, value in half.tensors(assignment).items()})
    without_the_package(half, site)

    half.clock.wind(1000)
    half.advance()
    waiting = half.check_in(BOB)
    with pytest.raises(Unavailable, match="task 1 is suspended until its method is installed on the server again"):
        half.send(BOB, assignment, *answer)
    with pytest.raises(Unavailable):
        half.fail(BOB)
    with pytest.raises(Unavailable):
        half.check_in(BOB, task=1)
    with pytest.raises(Unavailable):
        assignments.readable(half.federation, BOB, assignment.bundle)
    assert waiting.wait.reason == check_in_pb2.WAIT_REASON_NO_TASK
    assert half.members()[ALICE].state == admin_pb2.MEMBER_STATE_REPORTED

    with_it_again(half, site)
    half.send(BOB, assignment, *answer)
    half.advance()

    # Half of the way from 0 to 2
    np.testing.assert_array_equal(half.model()["fc.bias"], [1.0, 1.0])


def test_operators_see_why_a_task_is_suspended_and_can_end_it(half: Bench, site: Path) -> None:
    without_the_package(half, site)

    suspended = half.show().task
    with pytest.raises(Unavailable, match=r"task 'task' cannot be used without its method: .* found 'half'"):
        tasks.model(half.federation, "task")
    tasks.stop(half.federation, tasks.find(half.federation, "task"), ADMIN).result()
    half.reopen()

    assert suspended.state == admin_pb2.TASK_STATE_SUSPENDED
    assert suspended.reason.startswith("task settings: method: found 'half', must be one of ditto")
    assert (suspended.rounds_committed, suspended.rounds_total) == (0, 3)
    assert (half.show().task.state, half.show().task.reason) == (admin_pb2.TASK_STATE_STOPPED, "")
    assert half.show().rounds[0].reason == "the task was stopped"


def test_a_task_that_is_suspended_after_its_first_phase_is_shown_and_not_rolled_back(
    tmp_path: Path, site: Path
) -> None:
    install(site, "half-way", METHODS, half_way=HALF)
    with closing(Arrivals(tmp_path / "arrivals")) as server:
        server.enrol([ALICE])
        server.take(method="half", rounds=1, goal=1, rest=0, personal_evaluation=True)
        server.check_in(ALICE)
        server.report(ALICE)
        server.advance()
        without_the_package(server, site)

        shown = history.under_way(server.federation, server.task)
        with pytest.raises(Unavailable, match="task 'task' is suspended until its method is installed on the server"):
            rollback.roll_back(server.federation, server.task, 1, ADMIN).result()

        assert shown is not None
        assert (shown.number, shown.phase, shown.wanted, shown.free) == (2, "", None, 0)
        assert server.ends == ["committed", "open"]
        assert server.show().rounds[1].phase == 1


def test_other_tasks_go_on_and_their_end_is_not_the_end_of_all(half: Bench, site: Path) -> None:
    half.make(name="other", method="fedavg", rounds=1)
    half.settle()
    without_the_package(half, site)

    for client in (ALICE, BOB):
        assert half.assignment(client).task == 2
        half.report(client)
    half.advance()

    assert half.show("other").task.state == admin_pb2.TASK_STATE_FINISHED
    assert half.check_in(ALICE).HasField("wait")
    with_it_again(half, site)
    assert half.assignment(BOB).task == 1


def test_an_evaluation_of_a_suspended_task_is_asked_for_again(half: Bench, site: Path) -> None:
    half.report(BOB, 2.0)
    half.advance()
    half.enrol([CAROL], EVALUATORS)
    assignment = half.assignment(CAROL)
    without_the_package(half, site)

    with pytest.raises(Unavailable):
        half.evaluate(CAROL, evaluation_of(assignment))
    with_it_again(half, site)

    assert half.assignment(CAROL).round == 1


def test_a_task_that_waits_for_its_population_starts_when_its_method_is_back(bench: Bench, site: Path) -> None:
    install(site, "half-way", METHODS, half_way=HALF)
    bench.make(method="half")
    without_the_package(bench, site)

    bench.enrol([ALICE, BOB])
    assert bench.show().task.state == admin_pb2.TASK_STATE_SUSPENDED
    with_it_again(bench, site)
    bench.settle()

    assert bench.assignment(ALICE).round == 1
