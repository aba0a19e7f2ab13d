"""Tasks that an operator pauses, resumes, hurries and changes, and tasks that pause themselves."""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from fedlens_proto.v1 import admin_pb2, admission_pb2, check_in_pb2, enrolment_pb2, update_pb2
from fedlens_server.engine.cohorts import pauses
from fedlens_server.engine.operators import audit, control
from fedlens_server.engine.operators.access import Operator
from fedlens_server.errors import Forbidden, Malformed, TaskDiffers, Unknown
from fedlens_server.store import Transaction
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ALICE, BOB, CAROL, DAVE, EVALUATORS, EVE, Bench, evaluation_of

Receipt = update_pb2.Receipt
KIM = Operator(name="kim", role=admission_pb2.TOKEN_ROLE_OPERATE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    with closing(Arrivals(tmp_path / "control")) as found:
        found.enrol([ALICE, BOB, CAROL])
        yield found


def pause(bench: Bench) -> None:
    control.pause(bench.federation, bench.task, KIM).result()
    bench.settle()


def resume(bench: Bench) -> None:
    control.resume(bench.federation, bench.task, KIM).result()
    bench.settle()


def change(bench: Bench, **settings: object) -> None:
    control.change(bench.federation, bench.task, json.dumps(settings), KIM).result()


def test_a_paused_task_gives_no_place_but_what_is_under_way_commits(server: Arrivals) -> None:
    server.take(goal=2, min_reports=1, rest=0)
    assert server.has_place(ALICE)
    pause(server)

    assert server.reason(BOB) == "paused"
    assert server.has_place(ALICE)
    server.report(ALICE)
    server.clock.wind(3600)
    server.advance()

    assert server.ends == ["committed"]
    task = server.show().task
    assert (task.state, task.reason) == (admin_pb2.TASK_STATE_PAUSED, "by kim")
    assert server.reason(ALICE) == "paused"


def test_a_pause_outlives_a_restart_and_ends_at_the_operators_word(server: Arrivals) -> None:
    server.take(goal=1, rest=0)
    assert server.has_place(ALICE)
    server.report(ALICE)
    pause(server)
    server.advance()
    server.reopen()
    assert server.ends == ["committed"]
    assert server.reason(BOB) == "paused"

    resume(server)

    assert server.ends == ["committed", "open"]
    assert server.has_place(BOB)
    task = server.show().task
    assert (task.state, task.reason) == (admin_pb2.TASK_STATE_RUNNING, "")


def test_a_place_whose_time_is_over_is_not_given_again_while_paused(server: Arrivals) -> None:
    server.take(goal=1, member_deadline_s=60)
    assert server.has_place(ALICE)
    pause(server)
    server.clock.wind(60)
    assert server.reason(ALICE) == "paused"


def test_a_drawn_task_opens_no_round_while_it_is_paused(bench: Bench) -> None:
    bench.start()
    pause(bench)
    bench.commit()
    assert [each.round for each in bench.show().rounds] == [1]

    resume(bench)
    assert [each.round for each in bench.show().rounds] == [1, 2]


def test_a_task_that_waits_for_its_population_does_not_start_while_it_is_paused(bench: Bench) -> None:
    bench.make(population=2)
    pause(bench)
    bench.enrol([ALICE, BOB])
    assert not bench.show().rounds

    resume(bench)
    assert [each.round for each in bench.show().rounds] == [1]


def test_the_open_round_ends_at_the_operators_word_with_what_is_stored(server: Arrivals) -> None:
    server.take(goal=3, min_reports=1)
    assert server.has_place(ALICE)
    server.report(ALICE)

    control.end_round(server.federation, server.task, KIM).result()
    server.advance()

    assert server.ends == ["committed", "open"]


def test_a_round_that_is_ended_too_early_is_abandoned_and_does_not_count_as_a_failure(server: Arrivals) -> None:
    server.take(goal=3, min_reports=2, max_consecutive_abandoned=1)
    assert server.has_place(ALICE)
    server.report(ALICE)

    control.end_round(server.federation, server.task, KIM).result()
    server.reopen()
    server.advance()

    assert server.ends == ["abandoned", "open"]
    assert server.show().rounds[0].reason.startswith("valid updates: 1; needed: 2")


def test_changed_settings_hold_from_the_next_decision_on_and_after_a_restart(server: Arrivals) -> None:
    server.take(goal=1, rounds=2, rest=0)
    change(server, goal=2, min_reports=2, rounds=3)
    assert server.has_place(ALICE)
    server.report(ALICE)
    server.advance()
    assert server.ends == ["open"]

    server.reopen()
    assert server.has_place(BOB)
    server.report(BOB)
    server.advance()

    assert server.ends == ["committed", "open"]
    assert server.show().task.rounds_total == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"golf": 4}, "task settings: golf: there is no such setting; did you mean goal?"),
        ({"epochs": 2}, "task settings: epochs: found a change, must be left as it is: only canary, cap, clip"),
        (
            {"goal": 0},
            "task settings: goal: found 0, must be a whole number, 1 to 1000000 (updates that a round wants)",
        ),
        (
            {"goal": 1, "min_reports": 2},
            "task settings: min_reports: found 2, must be at most the clients of a round, 1",
        ),
        ({"rounds": 1}, "task settings: rounds: found 1, must be at least 2 in phase 'train', which has committed 1"),
        ({"cohort": 2}, 'task settings: cohort: found 2, must be left out with selection "arrivals"'),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(
    server: Arrivals, changes: dict[str, object], message: str
) -> None:
    server.take(goal=1, rounds=2, rest=0)
    assert server.has_place(ALICE)
    server.report(ALICE)
    server.advance()
    before = server.task.settings

    with pytest.raises(Malformed) as caught:
        change(server, **changes)

    assert str(caught.value).startswith(message)
    assert server.task.settings == before


def test_a_phase_that_is_over_keeps_its_rounds(server: Arrivals) -> None:
    server.take(goal=1, rounds=1, personal_evaluation=True)
    assert server.has_place(ALICE)
    server.report(ALICE)
    server.advance()

    with pytest.raises(Malformed, match=r"rounds: found 2, must be such that phases that are over keep .*: train 1$"):
        change(server, rounds=2)


def test_nothing_of_an_ended_task_can_be_changed(server: Arrivals) -> None:
    server.take(goal=1, rounds=1)
    assert server.has_place(ALICE)
    server.report(ALICE)
    server.advance()
    for act in (pause, resume, change):
        with pytest.raises(TaskDiffers, match="has ended"):
            act(server)


def finds(server: Bench, evaluator: bytes, right: int) -> None:
    """Have an evaluator find so many of a hundred photos right."""
    assignment = server.check_in(evaluator).assignment
    header = evaluation_of(assignment)
    for sums in header.evaluations:
        sums.CopyFrom(update_pb2.EvaluationSums(label=sums.label, count=100, correct=right, loss=1.0))
    server.evaluate(evaluator, header, number=assignment.round, body=bytes([right]) * 32)
    server.settle()


def commit(server: Arrivals) -> None:
    assert server.has_place(ALICE)
    server.report(ALICE)
    server.advance()


def measure(server: Arrivals, right: int) -> None:
    """Commit a round, and have Eve find so many of a hundred photos right."""
    commit(server)
    finds(server, EVE, right)


def test_a_task_pauses_itself_when_its_model_becomes_worse_by_more_than_it_allows(server: Arrivals) -> None:
    server.enrol([EVE], EVALUATORS)
    assert server.federation.clients[EVE].role == enrolment_pb2.CLIENT_ROLE_EVALUATOR
    server.take(goal=1, rounds=9, rest=0, pause_if_accuracy_falls=5)
    measure(server, 80)
    measure(server, 76)
    assert not server.task.paused

    measure(server, 75)

    assert server.task.paused == (
        "because accuracy fell: 75.0 % after round 3, 80.0 % after round 1; the task allows less than 5 points"
    )
    assert server.reason(BOB) == "paused"


@pytest.mark.parametrize(("every", "wait_s"), [(1, 0), (5, 61)], ids=["replaced", "its time is over"])
def test_an_evaluator_that_never_answers_does_not_keep_a_task_from_pausing_itself(
    server: Arrivals, every: int, wait_s: float
) -> None:
    server.enrol([DAVE, EVE], EVALUATORS)
    server.take(goal=1, rounds=9, rest=0, pause_if_accuracy_falls=5, deadline_s=60)
    measure(server, 80)
    commit(server)
    assert server.has_place(DAVE)  # and is never heard of again
    finds(server, EVE, 70)
    assert not server.task.paused

    change(server, evaluate_every=every)
    server.clock.wind(wait_s)
    commit(server)

    fell = "because accuracy fell: 70.0 % after round 2, 80.0 % after round 1; the task allows less than 5 points"
    assert server.task.paused == fell
    resume(server)
    commit(server)
    assert not server.task.paused  # it has been decided


def test_while_an_evaluator_may_still_answer_a_model_that_stays_is_not_judged(server: Arrivals) -> None:
    server.enrol([DAVE, EVE], EVALUATORS)
    server.take(goal=1, rounds=9, rest=0, pause_if_accuracy_falls=5, deadline_s=60)
    measure(server, 80)
    commit(server)
    assert server.has_place(DAVE)
    finds(server, EVE, 70)

    change(server, evaluate_every=5)
    commit(server)
    finds(server, DAVE, 90)

    # 70 and 90 of a hundred each are 80 %.
    assert not server.task.paused


def test_a_task_that_pauses_itself_at_a_commit_opens_no_round(bench: Bench) -> None:
    bench.enrol([DAVE, EVE], EVALUATORS)
    bench.start(rounds=9, pause_if_accuracy_falls=5)
    bench.commit()
    finds(bench, EVE, 80)
    bench.commit()
    bench.assignment(DAVE)  # and it never answers, so that the next commit decides
    finds(bench, EVE, 70)

    bench.commit()

    assert bench.task.paused
    assert [each.round for each in bench.show().rounds] == [1, 2, 3]
    assert bench.check_in(ALICE).wait.reason == check_in_pb2.WAIT_REASON_PAUSED
    resume(bench)
    assert [each.round for each in bench.show().rounds] == [1, 2, 3, 4]


@pytest.mark.parametrize("steps", [[], [pause, resume]], ids=["at once", "paused by hand and resumed before"])
def test_a_model_that_was_not_decided_on_before_a_restart_is_decided_on_after_it(
    server: Arrivals, steps: list[Callable[[Bench], None]]
) -> None:
    server.enrol([DAVE, EVE], EVALUATORS)
    server.take(goal=1, rounds=9, rest=0, pause_if_accuracy_falls=5)
    measure(server, 80)
    commit(server)
    assert server.has_place(DAVE)  # and is never heard of again
    finds(server, EVE, 70)
    for step in steps:
        step(server)

    server.reopen()
    assert not server.task.paused
    commit(server)

    assert server.task.paused.startswith("because accuracy fell: 70.0 % after round 2, 80.0 % after round 1;")


@pytest.mark.parametrize("steps", [[resume, Bench.reopen], [Bench.reopen, resume]], ids=["before", "afterwards"])
def test_a_task_that_was_resumed_is_not_paused_for_the_same_model_after_a_restart(
    server: Arrivals, steps: list[Callable[[Bench], None]]
) -> None:
    server.enrol([EVE], EVALUATORS)
    server.take(goal=1, rounds=9, rest=0, pause_if_accuracy_falls=5)
    measure(server, 80)
    measure(server, 70)
    why = server.task.paused

    for step in steps:
        step(server)
    commit(server)

    assert not server.task.paused
    (resumed,) = (each for each in audit.listed(server.federation, 0).entries if each.action == "task resume")
    assert resumed.detail == f"paused {why}"


def test_evaluations_share_a_commit_with_updates_and_trainers_send_none(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.enrol([EVE], EVALUATORS)
    server.take(goal=1, rounds=9, rest=0)
    commit(server)
    header = evaluation_of(server.check_in(EVE).assignment)
    submitted = list[object]()
    submit = server.store.submit

    def noted(operation: Callable[[Transaction], Receipt], keys: Iterable[Hashable] | None = None) -> Future[Receipt]:
        submitted.append(keys)
        return submit(operation, keys)

    monkeypatch.setattr(server.store, "submit", noted)
    with pytest.raises(Forbidden, match="only an enrolled evaluator"):
        server.evaluate(BOB, header)
    with pytest.raises(Unknown, match="round 99 of task 1 is not to be evaluated"):
        server.evaluate(EVE, header, number=99)
    assert submitted == []
    server.evaluate(EVE, header)
    assert submitted == [[server.task.id]]


@pytest.mark.parametrize(("best", "falls"), [(1, False), (2, True)])
def test_a_model_is_compared_with_the_best_of_the_ten_rounds_before_it(bench: Bench, best: int, falls: bool) -> None:
    bench.start(pause_if_accuracy_falls=5)
    right = {number: 9 if number == best else 8 for number in range(1, 13)}
    measured = [(number, [update_pb2.EvaluationSums(count=10, correct=correct)]) for number, correct in right.items()]

    assert bool(pauses.fall(bench.task, 12, measured)) is falls
