"""A task of several bundles: who gets which, which phase uses which, and the initial weights of each client's own."""

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2
from fedlens_server.engine import assignments, clients, tasks, updates
from fedlens_server.errors import Malformed, Unknown
from fedlens_server.methods import METHODS
from fedlens_server.methods.fedavg import sharing_global_set, whole_model_plan
from fedlens_server.planning.method import Method, MethodState, Phase, TaskPlan, Tools
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.concatenated import concatenated
from tests.server.fakes import CAPABILITIES, EVALUATORS, TRAINERS, Bench, client_ids, update_of
from tests.server.methods.tasks import changed
from tests.server.networks import network

ALICE, BOB, CAROL, EVE = client_ids(4)
LENET = network()
RESNET = changed(network(width=5), model="resnet")
LOCAL = {"method": "local_only", "rounds": 2, "population": 2, "deadline_s": 60}


def enrol(bench: Bench, client: bytes, *models: str) -> None:
    named = enrolment_pb2.Capabilities(models=models)
    named.MergeFrom(CAPABILITIES)
    clients.enrol(bench.federation, client, TRAINERS, named).result()
    bench.settle()


def bundle_id(bundle: TinyBundle) -> bytes:
    return sha256(bundle.manifest).digest()


def sets(assignment: pb.Assignment | check_in_pb2.CurrentModel) -> dict[str, bytes]:
    return {item.name: item.sha256 for item in assignment.sets}


def initial_of(bench: Bench, digest: bytes) -> tuple[int, ...]:
    """Shape of the convolution in a blob, by which the two models differ."""
    return bench.store.tensors(digest)["conv.weight"].shape


def test_each_client_gets_the_bundle_of_a_model_that_it_named(bench: Bench) -> None:
    bench.create(json.dumps(LOCAL), [LENET, RESNET])
    enrol(bench, ALICE, "resnet", "vgg")
    enrol(bench, BOB)

    assert bench.assignment(ALICE).bundle == bundle_id(RESNET)
    assert bench.assignment(BOB).bundle == bundle_id(LENET)


def test_a_client_that_named_none_of_the_models_takes_no_part(bench: Bench) -> None:
    bench.create(json.dumps(LOCAL), [LENET, RESNET])
    enrol(bench, ALICE, "vgg")

    assert bench.check_in(ALICE).wait.reason == check_in_pb2.WAIT_REASON_NO_TASK
    assert tasks.listed(bench.federation).tasks[0].enrolled == 0
    with pytest.raises(Unknown):
        assignments.readable(bench.federation, ALICE, bundle_id(LENET))


def test_the_models_that_a_client_named_are_known_after_a_restart(bench: Bench) -> None:
    bench.create(json.dumps(LOCAL), [LENET, RESNET])
    enrol(bench, ALICE, "resnet")
    bench.reopen()
    enrol(bench, BOB)

    assert bench.assignment(ALICE).bundle == bundle_id(RESNET)


def test_a_client_may_name_other_models_later(bench: Bench) -> None:
    bench.create(json.dumps(LOCAL), [LENET, RESNET])
    enrol(bench, ALICE, "vgg")
    enrol(bench, ALICE, "tiny")
    enrol(bench, BOB)

    assert bench.assignment(ALICE).bundle == bundle_id(LENET)


def test_the_initial_weights_that_a_pass_names_are_those_of_the_clients_own_bundle(bench: Bench) -> None:
    bench.create(json.dumps(LOCAL), [LENET, RESNET])
    enrol(bench, ALICE, "resnet")
    enrol(bench, BOB, "tiny")

    alices, bobs = (sets(bench.assignment(client)) for client in (ALICE, BOB))
    assert list(alices) == list(bobs) == ["initial"]
    assert initial_of(bench, alices["initial"]) == (2, 5)
    assert initial_of(bench, bobs["initial"]) == (2, 3)
    assert assignments.readable(bench.federation, ALICE, alices["initial"]).size > 0


def test_a_client_that_waits_is_told_of_them_too(bench: Bench) -> None:
    bench.create(json.dumps(LOCAL), [LENET, RESNET])
    enrol(bench, ALICE, "resnet")
    enrol(bench, BOB, "tiny")
    assignment = bench.assignment(ALICE)
    bench.send(ALICE, assignment, *update_of(assignment, None))

    (model,) = bench.check_in(ALICE).wait.models

    assert model.bundle == bundle_id(RESNET)
    assert sets(model) == sets(assignment)


def test_before_a_task_begins_there_is_no_model(bench: Bench) -> None:
    bench.create(json.dumps(LOCAL), [LENET])
    enrol(bench, ALICE)

    assert not bench.check_in(ALICE).wait.models


def test_rounds_without_any_upload_commit_and_evaluators_get_nothing(bench: Bench) -> None:
    bench.create(json.dumps(LOCAL), [LENET, RESNET])
    enrol(bench, ALICE, "resnet")
    enrol(bench, BOB, "tiny")
    bench.enrol([EVE], EVALUATORS)
    for _ in range(2):
        for client in (ALICE, BOB):
            assignment = bench.assignment(client)
            bench.send(client, assignment, *update_of(assignment, None))
        bench.advance()

    assert bench.check_in(ALICE).HasField("finished")
    assert not bench.check_in(EVE).HasField("assignment")
    with pytest.raises(Unknown, match="has no global model"):
        bench.model()


def test_a_classifier_is_shared_by_clients_with_different_extractors(bench: Bench) -> None:
    bench.create(json.dumps({**LOCAL, "method": "fedclassavg"}), [LENET, RESNET])
    enrol(bench, ALICE, "resnet")
    enrol(bench, BOB, "tiny")
    for client, value, photos in ((ALICE, 2.0, 1), (BOB, 6.0, 3)):
        assignment = bench.assignment(client)
        classifier = {"fc.bias": np.full(2, value, np.float32), "fc.weight": np.full((2, 2), value, np.float32)}
        bench.send(client, assignment, *update_of(assignment, classifier, photos))
    bench.advance()

    alices, bobs = (sets(bench.assignment(client)) for client in (ALICE, BOB))
    assert alices["global"] == bobs["global"]
    assert initial_of(bench, alices["initial"]) != initial_of(bench, bobs["initial"])
    # (1 * 2 + 3 * 6) / 4
    np.testing.assert_array_equal(bench.store.tensors(alices["global"])["fc.bias"], [5.0, 5.0])


def stacking_method(task: TaskPlan) -> Method:
    """A round of FedAvg, then one in which nothing but the concatenated classifier is trained."""
    train, stacked = whole_model_plan(task), whole_model_plan(task)
    stacked.extractors.extend(["one", "two"])
    phases = (
        Phase(name="train", rounds=1, cohort=None, local_plan=train),
        Phase(name="stack", rounds=1, cohort=None, local_plan=stacked, concatenated=True),
    )

    def begin(phase: Phase, state: MethodState, tools: Tools) -> MethodState:
        return {"global": tools.initial if phase.name == "train" else tools.initial_concatenated}

    return replace(sharing_global_set(task, train), phases=phases, begin=begin)


@pytest.fixture
def stacking() -> Iterator[dict[str, object]]:
    METHODS["stacking"] = stacking_method
    yield {**LOCAL, "method": "stacking"}
    del METHODS["stacking"]


def test_a_phase_that_concatenates_uses_the_bundle_for_that(bench: Bench, stacking: dict[str, object]) -> None:
    stacked = concatenated(2)
    bench.create(json.dumps({**stacking, "personal_evaluation": True}), [stacked, LENET])
    bench.enrol([ALICE, BOB])
    first = bench.assignment(ALICE)
    for client in (ALICE, BOB):
        bench.report(client)
    bench.advance()

    second = bench.assignment(ALICE)

    assert (first.bundle, second.bundle) == (bundle_id(LENET), bundle_id(stacked))
    assert sorted(bench.tensors(second)) == ["classifier.bias", "classifier.weight"]
    assert updates.expect(bench.federation, ALICE, 1, 2).layout is not None
    for client in (ALICE, BOB):
        bench.report(client)
    bench.advance()
    last = bench.assignment(ALICE)
    assert last.bundle == bundle_id(stacked)
    assert list(last.local_plan.extractors) == ["one", "two"]
    assert tasks.model(bench.federation, "task").bundle == bundle_id(stacked)


def test_an_evaluator_gets_the_extractors_with_the_bundle(bench: Bench, stacking: dict[str, object]) -> None:
    bench.create(json.dumps(stacking), [LENET, concatenated(2)])
    bench.enrol([ALICE, BOB])
    bench.enrol([EVE], EVALUATORS)
    for _ in range(2):
        for client in (ALICE, BOB):
            bench.report(client)
        bench.advance()

    assignment = bench.assignment(EVE)

    assert assignment.bundle == bundle_id(concatenated(2))
    assert list(assignment.local_plan.extractors) == ["one", "two"]


def test_who_cannot_run_a_bundle_in_every_phase_takes_no_part(bench: Bench, stacking: dict[str, object]) -> None:
    stacked = changed(concatenated(2), model="stacked")
    bench.create(json.dumps(stacking), [LENET, stacked])
    enrol(bench, ALICE, "tiny")
    enrol(bench, BOB, "tiny", "stacked")

    (task,) = tasks.listed(bench.federation).tasks
    assert task.enrolled == 1


@pytest.mark.parametrize(
    ("method", "bundles", "message"),
    [
        ("stacking", [LENET], "manifests: found only ordinary bundles, must be one that concatenates extractors too"),
        ("stacking", [concatenated(2)], "manifests: found only bundles that concatenate extractors, must be an ordin"),
        ("stacking", [LENET, concatenated(3)], "phase 'stack': .* 3 .* 2"),
        ("fedavg", [LENET, concatenated(2)], "manifests: found one that concatenates extractors, must be ordinary"),
        ("local_only", [LENET, tiny_bundle(class_prefix="kind")], "class names differ from those of the first bundle"),
    ],
)
@pytest.mark.usefixtures("stacking")
def test_bundles_that_do_not_suit_the_phases_are_refused(
    bench: Bench, method: str, bundles: list[TinyBundle], message: str
) -> None:
    with pytest.raises(Malformed, match=message):
        bench.create(json.dumps({**LOCAL, "method": method}), bundles)
