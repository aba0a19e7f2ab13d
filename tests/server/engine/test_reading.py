"""Access to blobs, where roles, capabilities and rounds differ; and a method that has no global model."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from fedlens_proto.v1 import admin_pb2, check_in_pb2, enrolment_pb2, manifest_pb2, update_pb2
from fedlens_server.engine import assignments, clients, evaluation, tasks
from fedlens_server.errors import Forbidden, Unknown
from fedlens_server.methods import METHODS
from fedlens_server.methods.fedavg import sharing_global_set, whole_model_plan
from fedlens_server.planning.method import Method, TaskPlan
from tests.server.bundles import tiny_bundle
from tests.server.fakes import EVALUATORS, SEED, TRAINERS, Bench, client_ids

ALICE, BOB, CAROL = client_ids(3)
EVE = client_ids(10)[-1]
SETTINGS = {"method": "fedavg", "rounds": 4, "population": 2, "deadline_s": 60, "seed": SEED}


@pytest.fixture
def personal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method `personal`, with a model for each client and none for all."""

    def for_task(task: TaskPlan) -> Method:
        return sharing_global_set(task, whole_model_plan(task), has_model=False)

    monkeypatch.setitem(METHODS, "personal", for_task)


def commit(bench: Bench, shift: float) -> None:
    bench.report(ALICE, shift)
    bench.report(BOB, shift)
    bench.advance()


def test_parts_of_a_bundle_are_for_those_alone_who_can_run_it(bench: Bench) -> None:
    ours, theirs = tiny_bundle(), tiny_bundle(model="phone", formats=[manifest_pb2.PROGRAM_FORMAT_PTE])
    bench.create(json.dumps(SETTINGS), [ours, theirs])
    bench.enrol([ALICE, BOB])
    (program,) = (raw for raw in theirs.parts if raw not in ours.parts)

    assert bench.assignment(ALICE).bundle == sha256(ours.manifest).digest()
    for raw in (ours.manifest, *ours.parts):
        assert assignments.readable(bench.federation, ALICE, sha256(raw).digest()).size == len(raw)
    for raw in (theirs.manifest, program):
        with pytest.raises(Unknown):
            assignments.readable(bench.federation, ALICE, sha256(raw).digest())


def test_each_member_is_given_the_bundle_that_it_can_run(bench: Bench) -> None:
    ours, theirs = tiny_bundle(), tiny_bundle(model="phone", formats=[manifest_pb2.PROGRAM_FORMAT_PTE])
    bench.create(json.dumps(SETTINGS), [ours, theirs])
    phone = enrolment_pb2.Capabilities(
        formats=[manifest_pb2.PROGRAM_FORMAT_PTE], bundle_classes=[manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL]
    )
    bench.enrol([ALICE])
    clients.enrol(bench.federation, BOB, TRAINERS, phone).result()
    bench.settle()

    given = [bench.assignment(client).bundle for client in (ALICE, BOB)]
    assert given == [sha256(bundle.manifest).digest() for bundle in (ours, theirs)]
    commit(bench, 1.0)
    assert bench.show().rounds[0].state == admin_pb2.ROUND_STATE_COMMITTED


def test_an_evaluator_can_fetch_the_model_it_is_to_evaluate_when_newer_ones_have_committed(bench: Bench) -> None:
    bench.create(json.dumps({**SETTINGS, "evaluate_every": 2}))
    bench.enrol([ALICE, BOB])
    bench.enrol([EVE], EVALUATORS)
    for shift in (1.0, 2.0):
        commit(bench, shift)
    commit(bench, 4.0)

    assignment = bench.assignment(EVE)

    assert assignment.round == 2
    (model,) = assignment.sets
    assert model.sha256 != tasks.model(bench.federation, "task").blob_sha256
    assert assignments.readable(bench.federation, EVE, model.sha256).size == model.size
    # From 0: 1 + 2.
    assert list(bench.tensors(assignment)["fc.bias"]) == [3.0, 3.0]
    with pytest.raises(Unknown):
        assignments.readable(bench.federation, ALICE, model.sha256)


def test_a_method_without_a_global_model_trains_and_has_nothing_to_evaluate(bench: Bench, personal: None) -> None:
    bench.create(json.dumps({**SETTINGS, "method": "personal"}))
    bench.enrol([ALICE, BOB])
    bench.enrol([EVE], EVALUATORS)

    commit(bench, 1.0)

    assert bench.show().rounds[0].state == admin_pb2.ROUND_STATE_COMMITTED
    assert bench.assignment(ALICE).round == 2
    assert bench.check_in(EVE).HasField("wait")
    with pytest.raises(Unknown, match="has no global model"):
        tasks.model(bench.federation, "task")
    sums = [update_pb2.EvaluationSums(moment=update_pb2.EVALUATION_MOMENT_START, count=1)]
    header = update_pb2.UpdateHeader(protocol=1, bundle=bench.assignment(ALICE).bundle, evaluations=sums)
    with pytest.raises(Unknown, match="not to be evaluated"):
        evaluation.accept(bench.federation, EVE, 1, 1, header, b"x" * 32).result()


def test_who_waits_or_has_finished_can_fetch_the_model_it_is_told_of(bench: Bench) -> None:
    bench.create(json.dumps({**SETTINGS, "rounds": 1}))
    bench.enrol([ALICE, BOB, CAROL])
    clients.revoke(bench.federation, CAROL).result()
    bench.report(ALICE, 1.0)
    waiting = bench.check_in(ALICE).wait.models[0].sets[0]
    before = assignments.readable(bench.federation, ALICE, waiting.sha256).size
    bench.report(BOB, 1.0)
    bench.clock.wind(60)
    bench.advance()

    finished = bench.check_in(ALICE).finished.models[0].sets[0]

    assert before == waiting.size
    assert finished.sha256 == tasks.model(bench.federation, "task").blob_sha256 != waiting.sha256
    assert assignments.readable(bench.federation, ALICE, finished.sha256).size == finished.size
    with pytest.raises(Forbidden):
        assignments.readable(bench.federation, CAROL, finished.sha256)


def test_a_client_whose_one_task_has_ended_waits_while_another_has_not_begun(bench: Bench) -> None:
    bench.create(json.dumps(SETTINGS))
    bench.create(json.dumps({**SETTINGS, "population": 3}), name="larger")
    bench.enrol([ALICE, BOB])

    tasks.stop(bench.federation, "task").result()

    assert bench.check_in(ALICE).wait.reason == check_in_pb2.WAIT_REASON_POPULATION
    assert bench.check_in(ALICE, task=1).HasField("finished")


def test_a_method_whose_download_lacks_a_set_fails_its_task_with_the_sets_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def for_task(task: TaskPlan) -> Method:
        return replace(
            sharing_global_set(task, whole_model_plan(task)),
            download=lambda phase, state, client: {"something": state["global"]},
        )

    monkeypatch.setitem(METHODS, "forgetful", for_task)
    bench.create(json.dumps({**SETTINGS, "method": "forgetful"}))

    bench.enrol([ALICE, BOB])

    task = bench.show().task
    assert task.state == admin_pb2.TASK_STATE_FAILED
    assert task.reason == "the method's download lacks set 'global', which its local plan names"
    assert bench.check_in(ALICE).HasField("finished")
