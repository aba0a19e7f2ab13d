"""Access to blobs, where roles, capabilities and rounds differ; and a method that has no global model."""

from dataclasses import replace
from hashlib import sha256

import pytest

from fedlens_proto.v1 import admin_pb2, check_in_pb2, manifest_pb2
from fedlens_server.engine import assignments
from fedlens_server.engine.operators import tasks
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.errors import Forbidden, Unknown
from fedlens_server.methods import METHODS
from fedlens_server.methods.fedavg import sharing_global_set, whole_model_plan
from fedlens_server.planning.method import Method, MethodDefinition, TaskPlan
from tests.server.bundles import tiny_bundle
from tests.server.fakes import ALICE, BOB, CAROL, EVALUATORS, EVE, PHONE, Bench, evaluation_of

OURS, THEIRS = tiny_bundle(), tiny_bundle(model="phone", formats=[manifest_pb2.PROGRAM_FORMAT_PTE])


def test_parts_of_a_bundle_are_for_those_alone_who_can_run_it(bench: Bench) -> None:
    bench.start(OURS, THEIRS)
    (program,) = (raw for raw in THEIRS.parts if raw not in OURS.parts)

    for raw in (OURS.manifest, *OURS.parts):
        assert assignments.readable(bench.federation, ALICE, sha256(raw).digest()).size == len(raw)
    for raw in (THEIRS.manifest, program):
        with pytest.raises(Unknown):
            assignments.readable(bench.federation, ALICE, sha256(raw).digest())


def test_each_member_is_given_the_bundle_that_it_can_run(bench: Bench) -> None:
    bench.make(OURS, THEIRS)
    bench.enrol([ALICE])
    bench.enrol([BOB], capabilities=PHONE)

    assert [bench.assignment(client).bundle for client in (ALICE, BOB)] == [OURS.id, THEIRS.id]
    bench.commit()
    assert bench.show().rounds[0].state == admin_pb2.ROUND_STATE_COMMITTED


def test_an_evaluator_can_fetch_the_model_it_is_to_evaluate_when_newer_ones_have_committed(bench: Bench) -> None:
    bench.start(evaluate_every=2, rounds=4)
    bench.enrol([EVE], EVALUATORS)
    for shift in (1.0, 2.0, 4.0):
        bench.commit(shift, shift)

    assignment = bench.assignment(EVE)

    assert assignment.round == 2
    (model,) = assignment.sets
    assert model.sha256 != tasks.model(bench.federation, "task").blob_sha256
    assert assignments.readable(bench.federation, EVE, model.sha256).size == model.size
    # From 0: 1 + 2.
    assert list(bench.tensors(assignment)["fc.bias"]) == [3.0, 3.0]
    with pytest.raises(Unknown):
        assignments.readable(bench.federation, ALICE, model.sha256)


def test_a_method_without_a_global_model_trains_and_has_nothing_to_evaluate(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def personal(task: TaskPlan) -> Method:
        return sharing_global_set(task, whole_model_plan(task), has_model=False)

    monkeypatch.setitem(METHODS, "personal", MethodDefinition(personal))
    bench.start(method="personal")
    bench.enrol([EVE], EVALUATORS)

    bench.commit()

    assert bench.show().rounds[0].state == admin_pb2.ROUND_STATE_COMMITTED
    assert bench.assignment(ALICE).round == 2
    assert bench.check_in(EVE).HasField("wait")
    with pytest.raises(Unknown, match="has no global model"):
        bench.model()
    with pytest.raises(Unknown, match="not to be evaluated"):
        bench.evaluate(EVE, evaluation_of(bench.assignment(ALICE)))


def test_who_waits_or_has_finished_can_fetch_the_model_it_is_told_of(bench: Bench) -> None:
    bench.make(rounds=1)
    bench.enrol([ALICE, BOB, CAROL])
    bench.revoke(CAROL)
    bench.report(ALICE, 1.0)
    wait = bench.check_in(ALICE).wait
    (waiting,) = wait.models[0].sets
    before = assignments.readable(bench.federation, ALICE, waiting.sha256).size
    bench.report(BOB, 1.0)
    bench.clock.wind(60)
    bench.advance()

    finished = bench.check_in(ALICE).finished.models[0].sets[0]

    assert (wait.reason, waiting.name, waiting.size) == (check_in_pb2.WAIT_REASON_NEXT_ROUND, "global", before)
    assert finished.sha256 == tasks.model(bench.federation, "task").blob_sha256 != waiting.sha256
    assert assignments.readable(bench.federation, ALICE, finished.sha256).size == finished.size
    with pytest.raises(Forbidden):
        assignments.readable(bench.federation, CAROL, finished.sha256)


def test_a_client_whose_one_task_has_ended_waits_while_another_has_not_begun(bench: Bench) -> None:
    bench.start()
    bench.make(population=3, name="larger")

    tasks.stop(bench.federation, tasks.find(bench.federation, "task"), ADMIN).result()

    assert bench.check_in(ALICE).wait.reason == check_in_pb2.WAIT_REASON_POPULATION
    assert bench.check_in(ALICE, task=1).HasField("finished")


def test_a_method_whose_download_lacks_a_set_fails_its_task_with_the_sets_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def for_task(task: TaskPlan) -> Method:
        return replace(
            sharing_global_set(task, whole_model_plan(task)),
            download=lambda phase, state, client: {"something": state.shared["global"]},
        )

    monkeypatch.setitem(METHODS, "forgetful", MethodDefinition(for_task))

    bench.start(method="forgetful")

    task = bench.show().task
    assert task.state == admin_pb2.TASK_STATE_FAILED
    assert task.reason == "the method's download lacks set 'global', which its local plan names"
    assert bench.check_in(ALICE).HasField("finished")
