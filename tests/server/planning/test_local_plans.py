from typing import Any

import pytest

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.planning.local_plans import evaluate, plan, source, train, upload
from fedlens_server.planning.method import Phase, State
from fedlens_server.planning.task_settings import TaskSettings
from tests.server.concatenated import concatenated
from tests.server.fakes import ALICE, BOB
from tests.server.networks import network


def settings(**given: Any) -> TaskSettings:
    return TaskSettings.model_validate({"method": "fedavg", "rounds": 1, "population": 1, **given})


def test_client_state_may_have_a_stand_in() -> None:
    assert source(state="own", download="global") == pb.Source(state="own", download="global")
    assert source(state="own").WhichOneof("other") is None


@pytest.mark.parametrize(
    ("task", "given", "epochs", "steps"),
    [
        ({}, {}, 1, 0),
        ({"epochs": 5}, {}, 5, 0),
        ({"steps": 7}, {}, 0, 7),
        ({"epochs": 5}, {"steps": 3}, 0, 3),
        ({"steps": 7}, {"epochs": 2}, 2, 0),
    ],
)
def test_a_training_is_as_long_as_it_says_or_else_as_the_task_says(
    task: dict[str, int], given: dict[str, Any], epochs: int, steps: int
) -> None:
    training = train(settings(**task), **given).train

    assert (training.epochs, training.steps) == (epochs, steps)


def test_a_difference_is_uploaded_only_where_the_task_asks_for_it() -> None:
    plain, delta = (upload(settings(difference=each, codec="f16"), base="global") for each in (False, True))

    assert (plain.base, delta.base) == ("", "global")
    assert {plain.codec, delta.codec} == {pb.CODEC_FLOAT16}


def test_a_plan_evaluates_before_and_after_training_unless_it_says_otherwise() -> None:
    assert [(each.label, each.value) for each in plan().evaluations] == [("start", "start"), ("trained", "trained")]
    assert [(each.label, each.value) for each in plan(evaluations=[evaluate("a", "b")]).evaluations] == [("a", "b")]


def test_a_phase_takes_the_bundles_with_as_many_extractors_as_its_plan() -> None:
    phase = Phase(name="last", rounds=1, cohort=None, plan=plan(extractors=["one", "two"]))

    assert [phase.takes(bundle.parsed) for bundle in (network(), concatenated(2), concatenated(3))] == [
        False,
        True,
        False,
    ]


def test_new_entries_of_a_client_leave_its_others_and_those_of_other_clients() -> None:
    state = State(shared={"a": 1}, clients={ALICE: {"x": 1, "y": 2}, BOB: {"x": 3}})

    changed = state.with_clients({ALICE: {"x": 4}}).with_shared(b=5)

    assert changed == State(shared={"a": 1, "b": 5}, clients={ALICE: {"x": 4, "y": 2}, BOB: {"x": 3}})
    assert state.of(ALICE) == {"x": 1, "y": 2}
    assert state.of(bytes(32)) == {}
