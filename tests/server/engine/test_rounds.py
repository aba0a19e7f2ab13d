"""The state machine of tasks and rounds, from check-in to the next round."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, update

from fedlens_proto import keyed_hash
from fedlens_proto.v1 import admin_pb2, check_in_pb2, update_pb2
from fedlens_server.engine import aggregation, assignments
from fedlens_server.engine.cohorts.members import Round, RoundKey
from fedlens_server.engine.operators import bans, tasks
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Change
from fedlens_server.errors import StoreUnusable, Unknown
from fedlens_server.planning.method import Phase, State, Tools, Update
from fedlens_server.store import method_state, schema
from tests.server.bundles import tiny_bundle
from tests.server.fakes import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVALUATORS,
    EVE,
    SEED,
    Bench,
    after_drawing,
    client_ids,
    disk_full,
)


def wait_reason(bench: Bench, client: bytes) -> check_in_pb2.WaitReason:
    return bench.check_in(client).wait.reason


def states(bench: Bench) -> list[admin_pb2.RoundState]:
    return [found.state for found in bench.show().rounds]


def test_a_task_waits_for_its_population(bench: Bench) -> None:
    bench.make()
    bench.enrol([ALICE])

    assert wait_reason(bench, ALICE) == check_in_pb2.WAIT_REASON_POPULATION
    bench.enrol([BOB])
    assert bench.assignment(ALICE).round == 1


def test_a_task_made_after_its_population_enrolled_starts_at_once(bench: Bench) -> None:
    bench.enrol([ALICE, BOB])
    bench.make()
    bench.settle()

    assert bench.assignment(BOB).round == 1


def test_a_repeated_check_in_gives_the_same_assignment_with_the_time_left(running: Bench) -> None:
    first = running.assignment(ALICE)
    running.clock.wind(12.5)
    second = running.assignment(ALICE)

    assert (first.time_left_ms, second.time_left_ms) == (60_000, 47_500)
    second.time_left_ms = first.time_left_ms
    assert second == first


def test_the_assignments_seed_follows_from_task_round_and_client(running: Bench) -> None:
    assert running.assignment(ALICE).seed == keyed_hash.assignment_seed(bytes.fromhex(SEED), 1, ALICE)


def test_a_round_closes_when_every_member_has_reported(running: Bench) -> None:
    running.report(ALICE, 1.0, num_examples=30)
    assert aggregation.due(running.federation) == []
    running.report(BOB, 5.0, num_examples=10)
    assert aggregation.due(running.federation) == [RoundKey(1, 1)]

    running.advance()

    # From 0: (30 * 1 + 10 * 5) / 40 = 2
    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])
    assert states(running) == [admin_pb2.ROUND_STATE_COMMITTED, admin_pb2.ROUND_STATE_OPEN]
    assert running.assignment(ALICE).round == 2


def test_a_round_closes_at_its_deadline_with_who_has_reported(running: Bench) -> None:
    running.report(ALICE, 4.0)
    assert aggregation.next_deadline(running.federation) == running.clock.now() + 60
    running.clock.wind(60)
    assert aggregation.next_deadline(running.federation) is None
    running.advance()

    np.testing.assert_array_equal(running.model()["fc.bias"], [4.0, 4.0])
    assert running.members()[BOB].state == admin_pb2.MEMBER_STATE_PENDING


def test_too_few_reports_abandon_the_round_and_numbers_are_not_used_again(bench: Bench) -> None:
    bench.start(min_reports=2, rounds=1)
    bench.report(ALICE)
    bench.clock.wind(60)
    bench.advance()
    bench.commit()

    shown = bench.show()
    assert [found.round for found in shown.rounds] == [1, 2]
    assert shown.rounds[0].reason == "valid updates: 1; needed: 2 (1 pending, 1 reported)"
    assert shown.rounds[1].state == admin_pb2.ROUND_STATE_COMMITTED
    assert (shown.task.rounds_committed, shown.task.state) == (1, admin_pb2.TASK_STATE_FINISHED)


def test_too_many_abandoned_rounds_in_a_row_fail_the_task(bench: Bench) -> None:
    bench.start(max_consecutive_abandoned=3)
    for _ in range(3):
        bench.clock.wind(60)
        bench.advance()

    shown = bench.show()
    assert shown.task.state == admin_pb2.TASK_STATE_FAILED
    assert shown.task.reason.startswith("rounds abandoned in a row: 3; the last one because valid updates: 0")
    assert len(shown.rounds) == 3
    assert bench.check_in(ALICE).HasField("finished")


def test_a_committed_round_in_between_starts_the_count_anew(bench: Bench) -> None:
    bench.start(max_consecutive_abandoned=2)
    for reporting in ([], [ALICE], []):
        for client in reporting:
            bench.report(client)
        bench.clock.wind(60)
        bench.advance()

    assert bench.show().task.state == admin_pb2.TASK_STATE_RUNNING


def test_no_photos_at_all_abandon_the_round(running: Bench) -> None:
    running.report(ALICE, num_examples=0)
    running.report(BOB, num_examples=0)
    running.advance()

    assert running.show().rounds[0].reason == "no client trained on any photo"


def test_a_client_is_finished_only_when_every_task_for_it_is(running: Bench) -> None:
    running.make(name="second")
    tasks.stop(running.federation, tasks.find(running.federation, "task"), ADMIN).result()
    running.settle()

    assert running.assignment(ALICE).task == 2
    tasks.stop(running.federation, tasks.find(running.federation, "second"), ADMIN).result()
    assert running.check_in(ALICE).HasField("finished")


def test_of_several_tasks_the_lowest_with_work_comes_first(running: Bench) -> None:
    running.make(name="second")
    running.settle()

    assert running.assignment(ALICE).task == 1
    running.report(ALICE)
    assert running.assignment(ALICE).task == 2
    assert running.check_in(ALICE, task=1).HasField("wait")
    with pytest.raises(Unknown, match="no task 7"):
        running.check_in(ALICE, task=7)


def test_the_cohort_is_the_smallest_ids_by_keyed_hash(bench: Bench) -> None:
    ids = client_ids(7)
    bench.make(population=7, cohort=3)
    bench.enrol(ids)

    assert list(bench.members()) == keyed_hash.cohort(bytes.fromhex(SEED), 1, ids, 3)


def test_who_enrols_later_joins_from_the_next_round(running: Bench) -> None:
    running.enrol([CAROL])
    assert wait_reason(running, CAROL) == check_in_pb2.WAIT_REASON_NEXT_ROUND
    running.commit()

    assert running.assignment(CAROL).round == 2


@pytest.mark.parametrize(
    ("act", "members"),
    [
        (lambda bench: bench.revoke(ALICE), [BOB]),
        (lambda bench: bench.forget(ALICE), [BOB]),
        (lambda bench: bench.enrol([CAROL]), [ALICE, BOB, CAROL]),
    ],
    ids=["revoke", "forget", "enrol"],
)
def test_who_comes_or_goes_after_the_next_cohort_was_drawn_is_a_member_or_none(
    running: Bench, monkeypatch: pytest.MonkeyPatch, act: Callable[[Bench], object], members: list[bytes]
) -> None:
    after_drawing(monkeypatch, lambda: act(running))

    running.commit()

    assert list(running.members(2)) == members


def test_a_restart_gives_an_open_round_its_full_deadline_and_keeps_reports(running: Bench) -> None:
    running.report(ALICE)
    running.clock.wind(50)
    running.reopen()

    assert running.assignment(BOB).time_left_ms == 60_000
    assert running.members()[ALICE].state == admin_pb2.MEMBER_STATE_REPORTED


def test_a_task_that_this_version_cannot_read_is_named_at_the_start(running: Bench) -> None:
    tasks = schema.tasks
    later = update(tasks).values(settings=func.replace(tasks.c.settings, "deadline_s", "deadline_min"))
    running.store.submit(lambda transaction: transaction.execute(later).close()).result()

    with pytest.raises(StoreUnusable, match=r"task 'task' cannot be taken up: .*deadline_min: there is no such"):
        running.reopen()


def test_a_stopped_tasks_round_is_abandoned_and_its_model_stays(running: Bench) -> None:
    running.commit(2.0, 2.0)
    running.report(ALICE, 9.0)

    tasks.stop(running.federation, tasks.find(running.federation, "task"), ADMIN).result()
    stopped = running.show()
    tasks.stop(running.federation, tasks.find(running.federation, "1"), ADMIN).result()

    assert stopped.task.state == admin_pb2.TASK_STATE_STOPPED
    assert stopped.rounds[1].reason == "the task was stopped"
    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])
    assert running.show() == stopped


def test_personal_evaluation_is_one_more_phase_for_everyone(bench: Bench) -> None:
    bench.start(rounds=1, cohort=1, personal_evaluation=True)
    (member,) = bench.members()
    bench.report(member)
    bench.advance()
    before = tasks.model(bench.federation, "task")

    for client in (ALICE, BOB):
        assignment = bench.assignment(client)
        assert (assignment.phase, [each.value for each in assignment.local_plan.instructions]) == (1, ["start"])
        sums = [update_pb2.EvaluationSums(label="start", count=5, correct=3, loss=1.5)]
        bench.upload(client, num_examples=0, evaluations=sums)
    bench.advance()

    shown = bench.show()
    assert (shown.task.rounds_total, shown.task.rounds_committed) == (2, 2)
    assert shown.task.state == admin_pb2.TASK_STATE_FINISHED
    assert [member.evaluations[0].correct for member in shown.rounds[1].members] == [3, 3]
    assert tasks.model(bench.federation, "task") == before
    assert before.round == 1


def test_an_evaluator_evaluates_every_nth_committed_round_and_the_last(bench: Bench) -> None:
    bench.start(evaluate_every=2)
    bench.enrol([EVE], EVALUATORS)
    bench.commit()
    assert bench.check_in(EVE).HasField("wait")

    for number in (2, 3):
        bench.commit()
        assert bench.assignment(EVE).round == number
        bench.evaluate(EVE, number=number)

    assert bench.check_in(EVE).HasField("finished")


def test_evaluations_are_added_up_over_evaluators_and_survive_a_restart(running: Bench) -> None:
    running.enrol([DAVE, EVE], EVALUATORS)
    running.commit()
    running.evaluate(DAVE)
    running.evaluate(EVE)
    running.reopen()

    (sums,) = getattr(running.show().rounds[0], "global")
    assert (sums.count, sums.correct, sums.loss) == (20, 16, 4.0)
    assert running.check_in(EVE).HasField("wait")


def test_a_method_without_a_round_open_goes_on_when_somebody_enrols(bench: Bench) -> None:
    bench.make(population=1)
    bench.enrol([ALICE])
    bench.forget(ALICE)
    bench.advance()
    bench.enrol([BOB])

    assert bench.assignment(BOB).round == 2


def test_bytes_sent_are_counted_for_the_round(running: Bench) -> None:
    model = running.assignment(ALICE).sets[0].sha256
    for client, digest, count in ((ALICE, model, 100), (BOB, model, 11), (EVE, model, 5000), (BOB, bytes(32), 5000)):
        assignments.count_sent(running.federation, client, digest, count)
    running.commit()
    running.reopen()

    assert [found.bytes_sent for found in running.show().rounds] == [111, 0]


def test_bytes_sent_are_counted_for_the_task_that_needs_them(running: Bench) -> None:
    running.make(tiny_bundle(features=5), name="second")
    running.settle()
    model = running.assignment(ALICE, task=2).sets[0].sha256

    assignments.count_sent(running.federation, ALICE, model, 100)

    assert [running.show(name).rounds[0].bytes_sent for name in ("task", "second")] == [0, 100]


def test_who_waits_is_told_of_a_new_round_and_of_its_end(running: Bench) -> None:
    changes: list[Change] = []
    unsubscribe = running.federation.subscribe(changes.append)
    running.report(ALICE)
    assert changes == []
    running.report(BOB)
    assert changes == [Change(due=True)]
    running.advance()
    assert changes[1:] == [
        Change(due=True),
        Change(models=frozenset({1}), clients=frozenset({ALICE, BOB}), due=True),
    ]
    unsubscribe()
    running.commit()
    assert len(changes) == 3


def test_uploads_are_deleted_one_round_after_theirs(running: Bench) -> None:
    running.report(ALICE, 1.0)
    (uploaded,) = running.member(ALICE).blobs.values()
    running.report(BOB, 2.0)
    running.advance()
    assert uploaded in running.store.blobs.sizes

    running.commit(3.0, 4.0)

    assert uploaded not in running.store.blobs.sizes


def test_what_only_an_ended_task_needed_is_deleted_with_its_end(bench: Bench) -> None:
    # No round follows that would sweep it. What stays: the bundle's two parts, and the model of three that were made.
    bench.start(rounds=2)
    for shift in (1.0, 2.0):
        bench.commit(shift, -shift)

    assert bench.show().task.state == admin_pb2.TASK_STATE_FINISHED
    model = tasks.model(bench.federation, "task")
    assert model.round == 2
    kept = {model.blob_sha256, *bench.task.bundles[0].parts}
    assert bench.store.blobs.sizes.keys() == kept


def test_a_round_that_ends_while_it_is_looked_at_is_left_out(running: Bench) -> None:
    tasks = running.federation.tasks

    class EndsMeanwhile:
        """Its round is there when first asked for, and gone from then on."""

        suspended = False

        def __init__(self, task: Task) -> None:
            self._seen = iter([task.round])
            self.over_at = task.over_at

        @property
        def round(self) -> Round | None:
            return next(self._seen, None)

    running.clock.wind(60)
    tasks[1] = EndsMeanwhile(tasks[1])  # type: ignore[assignment]  # all that `due` looks at

    assert aggregation.due(running.federation) == [RoundKey(1, 1)]
    assert aggregation.due(running.federation) == []


def test_parts_wait_a_day_for_their_task(bench: Bench) -> None:
    bench.put_parts(tiny_bundle())
    bench.reopen()
    assert len(bench.store.blobs.sizes) == 2

    bench.clock.wind(25 * 3600)
    bench.reopen()

    assert bench.store.blobs.sizes == {}


def test_a_part_put_again_waits_a_day_from_then(bench: Bench) -> None:
    for _ in range(2):
        bench.put_parts(tiny_bundle())
        bench.clock.wind(23 * 3600)
    bench.reopen()

    assert len(bench.store.blobs.sizes) == 2


def test_a_full_disk_leaves_the_round_closing_and_it_is_tried_again(
    running: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(running.store), "write_tensors", disk_full)
    running.commit(2.0, 2.0)
    assert aggregation.due(running.federation) == []
    assert states(running) == [admin_pb2.ROUND_STATE_CLOSING]
    monkeypatch.undo()
    running.clock.wind(5)
    running.advance()

    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])


def test_a_full_disk_keeps_a_task_waiting_and_its_start_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[Change] = []
    bench.federation.subscribe(changes.append)
    monkeypatch.setattr(method_state, "prepare", disk_full)
    bench.start()
    bench.settle()
    assert wait_reason(bench, ALICE) == check_in_pb2.WAIT_REASON_POPULATION
    assert Change(due=True) in changes
    assert aggregation.next_deadline(bench.federation) == bench.clock.now() + 5
    monkeypatch.undo()
    bench.clock.wind(5)
    bench.advance()

    assert bench.assignment(ALICE).round == 1
    assert aggregation.due(bench.federation) == []


ORDERS = st.permutations(range(4))


def final_model(folder: Path, orders: Sequence[Sequence[int]]) -> bytes:
    """The digest after two rounds in which clients enrol and report in these orders."""
    ids = client_ids(4)
    with closing(Bench(folder)) as bench:
        bench.make(population=4, rounds=2)
        bench.enrol([ids[i] for i in orders[0]])
        for order in orders[1:]:
            for i in order:
                bench.report(ids[i], shift=0.1 * (i + 1) ** 3, num_examples=7 * i + 1)
            bench.advance()
        return tasks.model(bench.federation, "task").blob_sha256


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(orders=st.tuples(ORDERS, ORDERS, ORDERS))
def test_the_result_does_not_depend_on_the_order_of_arrival(
    orders: Sequence[Sequence[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    plain = final_model(tmp_path_factory.mktemp("plain"), [range(4)] * 3)
    shuffled = final_model(tmp_path_factory.mktemp("shuffled"), orders)

    assert shuffled == plain


def test_a_round_that_is_not_due_stays_open(bench: Bench) -> None:
    bench.start()
    bench.report(ALICE)

    aggregation.advance(bench.federation, RoundKey(1, 1))

    assert bench.show().rounds[0].state == admin_pb2.ROUND_STATE_OPEN


def test_a_round_that_is_being_aggregated_is_not_aggregated_again(bench: Bench) -> None:
    bench.start()
    bench.report(ALICE)
    bench.report(BOB)
    method, states = bench.task.method, list[State]()

    def meanwhile(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        states.append(state)
        if len(states) == 1:
            aggregation.advance(bench.federation, RoundKey(1, 1))
        return method.aggregate(phase, state, updates, tools)

    bench.task.method = replace(method, aggregate=meanwhile)
    bench.advance()

    assert len(states) == 1


def test_a_task_goes_on_when_a_new_client_replaces_one_that_was_used_up_and_banned(bench: Bench) -> None:
    bench.start(max_participations=1, rounds=3)
    bench.commit()
    before = len(bench.show().rounds)

    bans.ban(bench.federation, ALICE, "", ADMIN).result()
    bench.enrol([CAROL])

    assert before == 1
    assert list(bench.members(2)) == [CAROL]
