"""A task of several bundles: who gets which, which phase uses which, and the initial weights of each client's own."""

from dataclasses import replace

import numpy as np
import pytest

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2
from fedlens_server.engine import assignments
from fedlens_server.engine.operators import tasks
from fedlens_server.errors import Malformed, Unknown
from fedlens_server.methods import METHODS
from fedlens_server.methods.fedavg import sharing_global_set, whole_model_plan
from fedlens_server.planning.method import Method, MethodDefinition, Phase, State, TaskPlan, Tools
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.concatenated import concatenated
from tests.server.fakes import ALICE, BOB, CAPABILITIES, EVALUATORS, EVE, Bench
from tests.server.methods.tasks import changed
from tests.server.networks import network, weights

LENET = network()
RESNET = changed(network(width=5), model="resnet")


def enrol(bench: Bench, client: bytes, *models: str) -> None:
    named = enrolment_pb2.Capabilities(models=models)
    named.MergeFrom(CAPABILITIES)
    bench.enrol([client], capabilities=named)


@pytest.fixture
def alone(bench: Bench) -> Bench:
    """A task in which each client trains alone, on either model."""
    bench.make(LENET, RESNET, method="local_only", rounds=2)
    return bench


@pytest.fixture
def both(alone: Bench) -> Bench:
    """Its first round: Alice has the large model, Bob the small one."""
    enrol(alone, ALICE, "resnet", "vgg")
    enrol(alone, BOB, "tiny")
    return alone


def sets(assignment: pb.Assignment | check_in_pb2.CurrentModel) -> dict[str, bytes]:
    return {item.name: item.sha256 for item in assignment.sets}


def initial_of(bench: Bench, assignment: pb.Assignment) -> tuple[int, ...]:
    """Shape of the convolution in the initial weights, by which the two models differ."""
    return bench.tensors(assignment, "initial")["conv.weight"].shape


def test_a_client_that_named_no_model_takes_the_first(alone: Bench) -> None:
    enrol(alone, ALICE, "resnet")
    enrol(alone, BOB)

    assert alone.assignment(BOB).bundle == LENET.id


def test_a_client_that_named_none_of_the_models_takes_no_part(alone: Bench) -> None:
    enrol(alone, ALICE, "vgg")

    assert alone.check_in(ALICE).wait.reason == check_in_pb2.WAIT_REASON_NO_TASK
    assert tasks.listed(alone.federation).tasks[0].enrolled == 0
    with pytest.raises(Unknown):
        assignments.readable(alone.federation, ALICE, LENET.id)


def test_the_models_that_a_client_named_are_known_after_a_restart(alone: Bench) -> None:
    enrol(alone, ALICE, "resnet")
    alone.reopen()
    enrol(alone, BOB)

    assert alone.assignment(ALICE).bundle == RESNET.id


def test_a_client_may_name_other_models_later(alone: Bench) -> None:
    for model in ("vgg", "tiny"):
        enrol(alone, ALICE, model)
    enrol(alone, BOB)

    assert alone.assignment(ALICE).bundle == LENET.id


def test_each_client_gets_the_bundle_of_a_model_that_it_named_and_its_initial_weights(both: Bench) -> None:
    alices, bobs = (both.assignment(client) for client in (ALICE, BOB))

    assert (alices.bundle, bobs.bundle) == (RESNET.id, LENET.id)
    assert list(sets(alices)) == list(sets(bobs)) == ["initial"]
    assert initial_of(both, alices) == (2, 5)
    assert initial_of(both, bobs) == (2, 3)
    assert assignments.readable(both.federation, ALICE, sets(alices)["initial"]).size > 0


def test_a_client_that_waits_is_told_of_them_too(both: Bench) -> None:
    assignment = both.assignment(ALICE)
    both.upload(ALICE)

    (model,) = both.check_in(ALICE).wait.models

    assert model.bundle == RESNET.id
    assert sets(model) == sets(assignment)
    (rule,) = model.rules
    assert (rule.source.state, rule.source.download) == ("model", "initial")


def test_before_a_task_begins_there_is_no_model(alone: Bench) -> None:
    enrol(alone, ALICE)

    assert not alone.check_in(ALICE).wait.models


def test_rounds_without_any_upload_commit_and_evaluators_get_nothing(both: Bench) -> None:
    both.enrol([EVE], EVALUATORS)
    for _ in range(2):
        for client in (ALICE, BOB):
            both.upload(client)
        both.advance()

    assert both.check_in(ALICE).HasField("finished")
    assert not both.check_in(EVE).HasField("assignment")
    with pytest.raises(Unknown, match="has no global model"):
        both.model()


def test_a_classifier_is_shared_by_clients_with_different_extractors(bench: Bench) -> None:
    bench.make(LENET, RESNET, method="fedclassavg")
    enrol(bench, ALICE, "resnet")
    enrol(bench, BOB, "tiny")
    for client, value, photos in ((ALICE, 2.0, 1), (BOB, 6.0, 3)):
        classifier = {"fc.bias": np.full(2, value, np.float32), "fc.weight": np.full((2, 2), value, np.float32)}
        bench.upload(client, classifier, photos)
    bench.advance()

    alices, bobs = (bench.assignment(client) for client in (ALICE, BOB))
    assert sets(alices)["global"] == sets(bobs)["global"]
    assert initial_of(bench, alices) != initial_of(bench, bobs)
    # (1 * 2 + 3 * 6) / 4
    np.testing.assert_array_equal(bench.tensors(alices)["fc.bias"], [5.0, 5.0])


def test_of_a_model_that_is_shared_in_part_evaluators_are_told_nothing_and_trainers_how_to_complete_it(
    bench: Bench,
) -> None:
    bench.make(LENET, method="fedper", rounds=1)
    bench.enrol([EVE], EVALUATORS)
    bench.enrol([ALICE, BOB])
    for client in (ALICE, BOB):
        bench.upload(
            client, {name: weights(1.0)[name] for name in ("bn.batches", "bn.mean", "bn.weight", "conv.weight")}
        )
    bench.advance()

    assert not bench.check_in(EVE).finished.models
    (model,) = bench.check_in(ALICE).finished.models
    assert sorted(sets(model)) == ["global", "initial"]
    assert [(rule.source.state, rule.source.download) for rule in model.rules] == [
        ("", "global"),
        ("classifier", "initial"),
    ]


def stacking_method(task: TaskPlan) -> Method:
    """A round of FedAvg, then one in which nothing but the concatenated classifier is trained."""
    train, stacked = whole_model_plan(task), whole_model_plan(task)
    stacked.extractors.extend(["one", "two"])
    phases = (
        Phase(name="train", rounds=1, cohort=None, plan=train),
        Phase(name="stack", rounds=1, cohort=None, plan=stacked),
    )

    def begin(phase: Phase, state: State, tools: Tools) -> State:
        return State(shared={"global": tools.initial})

    return replace(sharing_global_set(task, train), phases=phases, begin=begin)


@pytest.fixture(autouse=True)
def stacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "stacking", MethodDefinition(stacking_method))


def test_a_phase_that_concatenates_uses_the_bundle_for_that(bench: Bench) -> None:
    stacked = concatenated(2)
    bench.start(stacked, LENET, method="stacking", personal_evaluation=True)
    first = bench.assignment(ALICE)
    bench.commit()

    second = bench.assignment(ALICE)

    assert (first.bundle, second.bundle) == (LENET.id, stacked.id)
    assert sorted(bench.tensors(second)) == ["classifier.bias", "classifier.weight"]
    bench.commit()
    last = bench.assignment(ALICE)
    assert last.bundle == stacked.id
    assert list(last.local_plan.extractors) == ["one", "two"]
    assert tasks.model(bench.federation, "task").bundle == stacked.id


def test_an_evaluator_gets_the_extractors_with_the_bundle(bench: Bench) -> None:
    stacked = concatenated(2)
    bench.start(LENET, stacked, method="stacking")
    bench.enrol([EVE], EVALUATORS)
    for _ in range(2):
        bench.commit()

    assignment = bench.assignment(EVE)
    bench.evaluate(EVE, number=2)
    (model,) = bench.check_in(EVE).finished.models

    assert assignment.bundle == model.bundle == stacked.id
    assert list(assignment.local_plan.extractors) == list(model.extractors) == ["one", "two"]
    assert [rule.source.download for rule in model.rules] == ["global"]


def test_who_cannot_run_a_bundle_in_every_phase_takes_no_part(bench: Bench) -> None:
    bench.make(LENET, changed(concatenated(2), model="stacked"), method="stacking")
    enrol(bench, ALICE, "tiny")
    enrol(bench, BOB, "tiny", "stacked")

    (task,) = tasks.listed(bench.federation).tasks
    assert task.enrolled == 1


@pytest.mark.parametrize(
    ("method", "bundles", "message"),
    [
        (
            "stacking",
            [LENET],
            "manifests: found none that concatenates 2 extractors, must be one too, for phase",
        ),
        ("stacking", [concatenated(2)], "manifests: found only bundles that concatenate extractors, must be an ordin"),
        ("stacking", [LENET, concatenated(3)], "manifests: found none that concatenates 2 extractors"),
        (
            "fedavg",
            [LENET, concatenated(2)],
            r"\[1\]: found a bundle that concatenates 2 extractors, must be one that",
        ),
        ("local_only", [LENET, tiny_bundle(class_prefix="kind")], "class names differ from those of the first bundle"),
    ],
)
def test_bundles_that_do_not_suit_the_phases_are_refused(
    bench: Bench, method: str, bundles: list[TinyBundle], message: str
) -> None:
    with pytest.raises(Malformed, match=message):
        bench.make(*bundles, method=method)
