"""The state machine of tasks and rounds, from check-in to the next round."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, update

from fedlens_proto import keyed_hash
from fedlens_proto.v1 import admin_pb2, check_in_pb2, update_pb2
from fedlens_server.engine import aggregation, assignments, clients, evaluation, tasks
from fedlens_server.engine.view import Change, Federation, Round, RoundKey, Task
from fedlens_server.errors import StoreUnusable, Unknown
from fedlens_server.store import method_state, schema
from tests.server.bundles import tiny_bundle
from tests.server.fakes import EVALUATORS, SEED, Bench, after_drawing, client_ids, update_of
from tests.server.fakes import bench as open_bench

ALICE, BOB, CAROL = client_ids(3)
EVE = client_ids(10)[-1]


def settings_json(**changes: object) -> str:
    return json.dumps({"method": "fedavg", "rounds": 2, "population": 2, "deadline_s": 60, "seed": SEED, **changes})


@pytest.fixture
def running(bench: Bench) -> Bench:
    """A task of two rounds, in its first, with Alice and Bob."""
    bench.create(settings_json())
    bench.enrol([ALICE, BOB])
    return bench


def wait_reason(bench: Bench, client: bytes) -> check_in_pb2.WaitReason:
    return bench.check_in(client).wait.reason


def states(bench: Bench) -> list[admin_pb2.RoundState]:
    return [found.state for found in bench.show().rounds]


def member_states(bench: Bench, round_number: int) -> dict[bytes, admin_pb2.MemberState]:
    return {member.client_id: member.state for member in bench.show().rounds[round_number - 1].members}


def test_a_task_waits_for_its_population(bench: Bench) -> None:
    bench.create(settings_json())
    bench.enrol([ALICE])

    assert wait_reason(bench, ALICE) == check_in_pb2.WAIT_REASON_POPULATION
    bench.enrol([BOB])
    assert bench.assignment(ALICE).round == 1


def test_a_task_made_after_its_population_enrolled_starts_at_once(bench: Bench) -> None:
    bench.enrol([ALICE, BOB])
    bench.create(settings_json())
    bench.settle()

    assert bench.assignment(BOB).round == 1


def test_without_a_task_a_client_waits(bench: Bench) -> None:
    bench.enrol([ALICE])

    assert wait_reason(bench, ALICE) == check_in_pb2.WAIT_REASON_NO_TASK


def test_clients_that_cannot_run_the_bundle_do_not_count(bench: Bench) -> None:
    from fedlens_proto.v1 import manifest_pb2

    bench.create(settings_json(), [tiny_bundle(formats=[manifest_pb2.PROGRAM_FORMAT_PTE])])
    bench.enrol([ALICE, BOB])

    assert tasks.listed(bench.federation).tasks[0].enrolled == 0
    assert wait_reason(bench, ALICE) == check_in_pb2.WAIT_REASON_NO_TASK


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


def test_who_has_reported_waits_for_the_next_round(running: Bench) -> None:
    running.report(ALICE)

    response = running.check_in(ALICE)

    assert response.wait.reason == check_in_pb2.WAIT_REASON_NEXT_ROUND
    assert [item.name for item in response.wait.models[0].sets] == ["global"]


def test_a_round_closes_at_its_deadline_with_who_has_reported(running: Bench) -> None:
    running.report(ALICE, 4.0)
    assert aggregation.next_deadline(running.federation) == running.clock.now() + 60
    running.clock.wind(60)
    assert aggregation.next_deadline(running.federation) is None
    running.advance()

    np.testing.assert_array_equal(running.model()["fc.bias"], [4.0, 4.0])
    assert member_states(running, 1)[BOB] == admin_pb2.MEMBER_STATE_PENDING


def test_too_few_reports_abandon_the_round_and_numbers_are_not_used_again(bench: Bench) -> None:
    bench.create(settings_json(min_reports=2, rounds=1))
    bench.enrol([ALICE, BOB])
    bench.report(ALICE)
    bench.clock.wind(60)
    bench.advance()
    bench.report(ALICE)
    bench.report(BOB)
    bench.advance()

    shown = bench.show()
    assert [found.round for found in shown.rounds] == [1, 2]
    assert shown.rounds[0].reason == "1 valid updates came, 2 are needed (1 pending, 1 reported)"
    assert shown.rounds[1].state == admin_pb2.ROUND_STATE_COMMITTED
    assert (shown.task.rounds_committed, shown.task.state) == (1, admin_pb2.TASK_STATE_FINISHED)


def test_too_many_abandoned_rounds_in_a_row_fail_the_task(bench: Bench) -> None:
    bench.create(settings_json(max_consecutive_abandoned=3))
    bench.enrol([ALICE, BOB])
    for _ in range(3):
        bench.clock.wind(60)
        bench.advance()

    shown = bench.show()
    assert shown.task.state == admin_pb2.TASK_STATE_FAILED
    assert shown.task.reason.startswith("3 rounds were abandoned in a row, the last one because 0 valid updates")
    assert len(shown.rounds) == 3
    assert bench.check_in(ALICE).HasField("finished")


def test_a_committed_round_in_between_starts_the_count_anew(bench: Bench) -> None:
    bench.create(settings_json(max_consecutive_abandoned=2))
    bench.enrol([ALICE, BOB])
    for reporting in (False, True, False):
        if reporting:
            bench.report(ALICE)
        bench.clock.wind(60)
        bench.advance()

    assert bench.show().task.state == admin_pb2.TASK_STATE_RUNNING


def test_no_photos_at_all_abandon_the_round(running: Bench) -> None:
    running.report(ALICE, num_examples=0)
    running.report(BOB, num_examples=0)
    running.advance()

    assert running.show().rounds[0].reason == "no client trained on any photo"


def test_the_task_is_finished_when_its_rounds_have_committed(running: Bench) -> None:
    for _ in range(2):
        running.report(ALICE)
        running.report(BOB)
        running.advance()

    finished = running.check_in(ALICE).finished

    assert finished.models[0].sets[0].sha256 == tasks.model(running.federation, "task").blob_sha256
    assert tasks.model(running.federation, "task").round == 2


def test_a_client_is_finished_only_when_every_task_for_it_is(running: Bench) -> None:
    running.create(settings_json(), name="second")
    tasks.stop(running.federation, "task").result()
    running.settle()

    assert running.assignment(ALICE).task == 2
    tasks.stop(running.federation, "second").result()
    assert running.check_in(ALICE).HasField("finished")


def test_of_several_tasks_the_lowest_with_work_comes_first(running: Bench) -> None:
    running.create(settings_json(), name="second")
    running.settle()

    assert running.assignment(ALICE).task == 1
    running.report(ALICE)
    assert running.assignment(ALICE).task == 2
    assert running.check_in(ALICE, task=1).HasField("wait")
    with pytest.raises(Unknown, match="no task 7"):
        running.check_in(ALICE, task=7)


def test_the_cohort_is_the_smallest_ids_by_keyed_hash(bench: Bench) -> None:
    ids = client_ids(7)
    bench.create(settings_json(population=7, cohort=3))
    bench.enrol(ids)

    assert list(member_states(bench, 1)) == keyed_hash.cohort(bytes.fromhex(SEED), 1, ids, 3)


def test_who_enrols_later_joins_from_the_next_round(running: Bench) -> None:
    running.enrol([CAROL])
    assert wait_reason(running, CAROL) == check_in_pb2.WAIT_REASON_NEXT_ROUND
    running.report(ALICE)
    running.report(BOB)
    running.advance()

    assert running.assignment(CAROL).round == 2


@pytest.mark.parametrize("leave", [clients.revoke, clients.forget])
def test_a_client_that_leaves_after_the_next_cohort_was_drawn_is_no_member(
    running: Bench, monkeypatch: pytest.MonkeyPatch, leave: Callable[[Federation, bytes], Future[object]]
) -> None:
    after_drawing(monkeypatch, lambda: leave(running.federation, ALICE).result())
    running.report(ALICE)
    running.report(BOB)

    running.advance()

    assert list(member_states(running, 2)) == [BOB]


def test_a_client_that_enrols_after_the_next_cohort_was_drawn_is_a_member(
    running: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_drawing(monkeypatch, lambda: running.enrol([CAROL]))
    running.report(ALICE)
    running.report(BOB)

    running.advance()

    assert list(member_states(running, 2)) == [ALICE, BOB, CAROL]


def test_a_restart_gives_an_open_round_its_full_deadline_and_keeps_reports(running: Bench) -> None:
    running.report(ALICE)
    running.clock.wind(50)
    running.reopen()

    assert running.assignment(BOB).time_left_ms == 60_000
    assert member_states(running, 1)[ALICE] == admin_pb2.MEMBER_STATE_REPORTED


def test_a_round_that_was_closing_is_aggregated_after_a_restart(running: Bench) -> None:
    running.report(ALICE, 1.0)
    running.report(BOB, 3.0)
    running.freeze()
    running.reopen()

    assert aggregation.due(running.federation) == [RoundKey(1, 1)]
    running.advance()
    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])


def test_a_task_that_this_version_cannot_go_on_with_is_named_at_the_start(running: Bench) -> None:
    tasks = schema.tasks
    later = update(tasks).values(settings=func.replace(tasks.c.settings, "fedavg", "fedlater"))
    running.store.submit(lambda transaction: transaction.execute(later).close()).result()

    with pytest.raises(StoreUnusable, match=r"task 'task' cannot be taken up: .*method: found 'fedlater'"):
        running.reopen()


def test_a_stopped_tasks_round_is_abandoned_and_its_model_stays(running: Bench) -> None:
    running.report(ALICE, 2.0)
    running.report(BOB, 2.0)
    running.advance()
    running.report(ALICE, 9.0)

    tasks.stop(running.federation, "task").result()
    stopped = running.show()
    tasks.stop(running.federation, "1").result()

    assert stopped.task.state == admin_pb2.TASK_STATE_STOPPED
    assert running.show().rounds[1].reason == "the task was stopped"
    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])
    assert running.show() == stopped


def test_personal_evaluation_is_one_more_phase_for_everyone(bench: Bench) -> None:
    bench.create(settings_json(rounds=1, cohort=1, personal_evaluation=True))
    bench.enrol([ALICE, BOB])
    (member,) = member_states(bench, 1)
    bench.report(member)
    bench.advance()
    before = tasks.model(bench.federation, "task").blob_sha256

    for client in (ALICE, BOB):
        assignment = bench.assignment(client)
        assert (assignment.phase, len(assignment.local_plan.stages)) == (1, 0)
        sums = [update_pb2.EvaluationSums(moment=update_pb2.EVALUATION_MOMENT_START, count=5, correct=3, loss=1.5)]
        bench.send(client, assignment, *update_of(assignment, None, 0, evaluations=sums))
    bench.advance()

    shown = bench.show()
    assert (shown.task.rounds_total, shown.task.rounds_committed) == (2, 2)
    assert shown.task.state == admin_pb2.TASK_STATE_FINISHED
    assert [member.evaluations[0].correct for member in shown.rounds[1].members] == [3, 3]
    assert tasks.model(bench.federation, "task").blob_sha256 == before
    assert tasks.model(bench.federation, "task").round == 1


def test_an_evaluator_evaluates_every_nth_committed_round_and_the_last(bench: Bench) -> None:
    bench.create(settings_json(rounds=3, evaluate_every=2))
    bench.enrol([ALICE, BOB])
    bench.enrol([EVE], EVALUATORS)
    evaluated = []
    for _ in range(3):
        bench.report(ALICE)
        bench.report(BOB)
        bench.advance()
        response = bench.check_in(EVE)
        if response.HasField("assignment"):
            evaluated.append(response.assignment.round)
            header = evaluation_of(response.assignment)
            evaluation.accept(bench.federation, EVE, 1, response.assignment.round, header, b"x" * 32).result()

    assert evaluated == [2, 3]
    assert bench.check_in(EVE).HasField("finished")


def evaluation_of(assignment: object, correct: int = 8) -> update_pb2.UpdateHeader:
    sums = update_pb2.EvaluationSums(moment=update_pb2.EVALUATION_MOMENT_START, count=10, correct=correct, loss=2.0)
    return update_pb2.UpdateHeader(
        protocol=1,
        phase=assignment.phase,  # type: ignore[attr-defined]
        bundle=assignment.bundle,  # type: ignore[attr-defined]
        evaluations=[sums],
    )


def test_evaluations_are_added_up_over_evaluators_and_survive_a_restart(running: Bench) -> None:
    second = client_ids(11)[-1] if client_ids(11)[-1] != EVE else client_ids(11)[-2]
    running.enrol([EVE, second], EVALUATORS)
    running.report(ALICE)
    running.report(BOB)
    running.advance()
    for client in (EVE, second):
        header = evaluation_of(running.assignment(client))
        evaluation.accept(running.federation, client, 1, 1, header, b"x" * 32).result()
    running.reopen()

    (sums,) = getattr(running.show().rounds[0], "global")
    assert (sums.count, sums.correct, sums.loss) == (20, 16, 4.0)
    assert running.check_in(EVE).HasField("wait")


def test_evaluators_are_never_in_a_cohort(bench: Bench) -> None:
    bench.create(settings_json())
    bench.enrol([EVE], EVALUATORS)
    bench.enrol([ALICE, BOB])

    assert EVE not in member_states(bench, 1)
    assert bench.check_in(EVE).HasField("wait")


def test_a_method_without_a_round_open_goes_on_when_somebody_enrols(bench: Bench) -> None:
    bench.create(settings_json(population=1))
    bench.enrol([ALICE])
    clients.forget(bench.federation, ALICE).result()
    bench.advance()
    bench.enrol([BOB])

    assert bench.assignment(BOB).round == 2


def test_bytes_sent_are_counted_for_the_round(running: Bench) -> None:
    model = running.assignment(ALICE).sets[0].sha256
    assignments.count_sent(running.federation, ALICE, model, 100)
    assignments.count_sent(running.federation, BOB, model, 11)
    assignments.count_sent(running.federation, EVE, model, 5000)
    assignments.count_sent(running.federation, BOB, bytes(32), 5000)
    running.report(ALICE)
    running.report(BOB)
    running.advance()
    running.reopen()

    assert [found.bytes_sent for found in running.show().rounds] == [111, 0]


def test_bytes_sent_are_counted_for_the_task_that_needs_them(running: Bench) -> None:
    running.create(settings_json(), bundles=[tiny_bundle(features=5)], name="second")
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
    assert changes == [Change(frozenset(), due=True)]
    running.advance()
    assert changes[1:] == [Change(frozenset({1}), due=True)] * 2
    unsubscribe()
    running.report(ALICE)
    running.report(BOB)
    assert len(changes) == 3


def test_uploads_are_deleted_one_round_after_theirs(running: Bench) -> None:
    running.report(ALICE, 1.0)
    uploaded = running.member(ALICE).blob
    running.report(BOB, 2.0)
    running.advance()
    assert uploaded in running.store.blobs.sizes

    running.report(ALICE, 3.0)
    running.report(BOB, 4.0)
    running.advance()

    assert uploaded not in running.store.blobs.sizes


def test_what_only_an_ended_task_needed_is_deleted_with_its_end(running: Bench) -> None:
    # No round follows that would sweep it. What stays: the bundle's two parts, and the model of three that were made.
    for shift in (1.0, 2.0):
        running.report(ALICE, shift)
        running.report(BOB, -shift)
        running.advance()

    assert running.show().task.state == admin_pb2.TASK_STATE_FINISHED
    kept = {tasks.model(running.federation, "task").blob_sha256, *running.task.bundles[0].parts}
    assert running.store.blobs.sizes.keys() == kept


def test_a_round_that_ends_while_it_is_looked_at_is_left_out(running: Bench) -> None:
    tasks = running.federation.tasks

    class EndsMeanwhile:
        """Its round is there when first asked for, and gone from then on."""

        def __init__(self, task: Task) -> None:
            self._seen = iter([task.round])

        @property
        def round(self) -> Round | None:
            return next(self._seen, None)

    running.clock.wind(60)
    tasks[1] = EndsMeanwhile(tasks[1])  # type: ignore[assignment]  # all that `due` looks at

    assert aggregation.due(running.federation) == [RoundKey(1, 1)]
    assert aggregation.due(running.federation) == []


def test_parts_wait_a_day_for_their_task(bench: Bench) -> None:
    bundle = tiny_bundle()
    bench.put_parts(bundle)
    bench.reopen()
    assert len(bench.store.blobs.sizes) == 2

    bench.clock.wind(25 * 3600)
    bench.reopen()

    assert bench.store.blobs.sizes == {}


def test_a_part_put_again_waits_a_day_from_then(bench: Bench) -> None:
    bench.put_parts(tiny_bundle())
    bench.clock.wind(23 * 3600)
    bench.put_parts(tiny_bundle())
    bench.clock.wind(23 * 3600)
    bench.reopen()

    assert len(bench.store.blobs.sizes) == 2


def test_a_full_disk_leaves_the_round_closing_and_it_is_tried_again(
    running: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedlens_server.store.blobs import full

    def fail(*_: object) -> None:
        raise full()

    running.report(ALICE, 2.0)
    running.report(BOB, 2.0)
    monkeypatch.setattr(type(running.store), "write_tensors", fail)
    running.advance()
    assert aggregation.due(running.federation) == []
    assert running.show().rounds[0].state == admin_pb2.ROUND_STATE_CLOSING
    monkeypatch.undo()
    running.clock.wind(5)
    running.advance()

    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])


def test_a_full_disk_keeps_a_task_waiting_and_its_start_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedlens_server.store.blobs import full

    def fail(*_: object) -> None:
        raise full()

    changes: list[Change] = []
    bench.create(settings_json())
    bench.federation.subscribe(changes.append)
    monkeypatch.setattr(method_state, "prepare", fail)
    bench.enrol([ALICE, BOB])
    bench.settle()
    assert wait_reason(bench, ALICE) == check_in_pb2.WAIT_REASON_POPULATION
    assert Change(frozenset(), due=True) in changes
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
    with open_bench(folder) as bench:
        bench.create(settings_json(population=4))
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
