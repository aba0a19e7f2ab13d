"""Client statistics: asked for by settings and methods, checked, added up, and kept from undoing noise."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from fedlens_proto import wire
from fedlens_proto.v1 import admin_pb2, assignment_pb2, update_pb2
from fedlens_server.engine import phases, vetting
from fedlens_server.errors import Malformed, UpdateInvalid
from fedlens_server.methods import METHODS
from fedlens_server.methods.fedavg import sharing_global_set, whole_model_plan, with_mean
from fedlens_server.planning.local_plans import (
    CONFUSION,
    FINE_TUNED,
    START,
    TRAINED,
    evaluate,
    label_distribution,
    plan,
    train,
)
from fedlens_server.planning.method import Method, MethodDefinition, Phase, State, TaskPlan, Tools, Update
from fedlens_server.planning.task_settings import TaskSettings
from fedlens_server.store import schema
from tests.server.bundles import tiny_bundle
from tests.server.fakes import ALICE, BOB, EVALUATORS, EVE, Bench, evaluation_of

Change = Callable[[assignment_pb2.LocalPlan], object]


@pytest.fixture
def asking(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    """Start FedAvg with a changed local plan and these settings; its state keeps the distributions and evaluations."""

    def aggregate(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        shares = [list(update.label_distribution or ()) for update in updates]
        evaluated = [{label: sums.correct for label, sums in update.evaluations.items()} for update in updates]
        return with_mean(phase, state, updates, tools).with_shared(shares=shares, evaluated=evaluated)

    def started(change: Change, **settings: object) -> Bench:
        def for_task(task: TaskPlan) -> Method:
            local_plan = whole_model_plan(task)
            change(local_plan)
            return sharing_global_set(task, local_plan, aggregate=aggregate)

        monkeypatch.setitem(METHODS, "asking", MethodDefinition(for_task))
        return bench.start(method="asking", **settings)

    return started


def ask_noisily(local_plan: assignment_pb2.LocalPlan) -> None:
    local_plan.statistics.add().label_distribution.epsilon = 1.0


@pytest.fixture
def noisy(asking: Callable[..., Bench]) -> Bench:
    """A task that asks for noisy label distributions, and would ask for confusion matrices."""
    return asking(ask_noisily, confusion=True)


def sums(label: str, *confusion: int) -> update_pb2.EvaluationSums:
    """Of a two-class problem; the sums that belong to a confusion matrix."""
    count, correct = sum(confusion), confusion[0] + confusion[3]
    return update_pb2.EvaluationSums(label=label, count=count, correct=correct, loss=float(count), confusion=confusion)


def report(bench: Bench, client: bytes, *evaluations: update_pb2.EvaluationSums, shares: Sequence[float] = ()) -> None:
    bench.report(client, evaluations=evaluations, label_distribution=shares)


def commit(bench: Bench, *evaluations: update_pb2.EvaluationSums) -> None:
    """A round in which Alice and Bob measure the same."""
    for client in (ALICE, BOB):
        report(bench, client, *evaluations)
    bench.advance()


def questions(local_plan: assignment_pb2.LocalPlan) -> list[str | None]:
    return [ask.WhichOneof("kind") for ask in local_plan.statistics]


def test_the_setting_asks_for_confusion_wherever_something_is_evaluated(bench: Bench) -> None:
    bench.start(confusion=True, personal_evaluation=True, rounds=1)
    bench.enrol([EVE], EVALUATORS)
    training = bench.assignment(ALICE).local_plan
    commit(bench, sums(START, 1, 0, 0, 1), sums(TRAINED, 1, 0, 0, 1))

    assert questions(training) == ["confusion"]
    personal = bench.assignment(ALICE).local_plan
    assert (questions(personal), len(personal.instructions)) == (["confusion"], 1)
    assert questions(bench.assignment(EVE).local_plan) == ["confusion"]


def test_without_the_setting_nobody_is_asked_for_confusion(bench: Bench) -> None:
    assert questions(bench.start().assignment(ALICE).local_plan) == []


def test_confusion_matrices_are_shown_added_up_by_label(bench: Bench) -> None:
    bench.start(confusion=True)
    bench.enrol([EVE], EVALUATORS)
    report(bench, ALICE, sums(START, 1, 1, 0, 2), sums(TRAINED, 2, 0, 0, 2))
    report(bench, BOB, sums(START, 0, 3, 1, 0), sums(TRAINED, 0, 0, 3, 1))
    bench.advance()
    bench.evaluate(EVE, evaluation_of(bench.assignment(EVE), evaluations=[sums("global", 5, 1, 2, 4)]))
    bench.reopen()

    shown = bench.show().rounds[0]
    # 1 + 0, 1 + 3, 0 + 1, 2 + 0 and 2 + 0, 0 + 0, 0 + 3, 2 + 1
    assert [(s.label, s.count, s.correct, list(s.confusion)) for s in shown.personal] == [
        (START, 8, 3, [1, 4, 1, 2]),
        (TRAINED, 8, 5, [2, 0, 3, 3]),
    ]
    assert [list(s.confusion) for s in getattr(shown, "global")] == [[5, 1, 2, 4]]
    # A thousand members' matrices would be too long a message.
    assert [len(s.confusion) for member in shown.members for s in member.evaluations] == [0, 0, 0, 0]


def header_of(*evaluations: update_pb2.EvaluationSums, **statistics: Any) -> update_pb2.UpdateHeader:
    """What a client answers to `EVERYTHING`, but for these."""
    fields = {"label_distribution": [0.7, -0.1], **statistics}
    return update_pb2.UpdateHeader(num_examples=10, evaluations=evaluations, **fields)


def right(count: int, correct: int, *confusion: int) -> update_pb2.EvaluationSums:
    return update_pb2.EvaluationSums(label=START, count=count, correct=correct, confusion=confusion)


EVERYTHING = plan(evaluations=[evaluate(START)], statistics=[label_distribution(1.0), CONFUSION])


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (header_of(label_distribution=[]), "label_distribution: found 0 numbers, must be 2"),
        (header_of(label_distribution=[0.1] * 3), "label_distribution: found 3 numbers, must be 2"),
        (header_of(label_distribution=[0.1, float("nan")]), "distribution: found nan, must be from -1e+09 to 1e+09"),
        (header_of(label_distribution=[-1e160, 0.1]), "distribution: found -1e+160, must be from -1e+09 to 1e+09"),
        (header_of(label_distribution=[0.1, float("-inf")]), "label_distribution: found -inf"),
        (header_of(class_counts=[5, 5]), "class_counts came where none"),
        (header_of(right(3, 0)), "a confusion matrix of 0 numbers, must be 2 x 2"),
        (
            header_of(right(3, 2, 1, 1, 1, 1)),
            "a confusion matrix of 4 photos, 2 of them right, beside 2 of 3 photos right",
        ),
        (header_of(right(4, 3, 1, 1, 1, 1)), "4 photos, 2 of them right, beside 3 of 4"),
        (header_of(right(1001, 1001, 1001, 0, 0, 0)), "evaluations: found 1001 photos, at most 1000 are allowed"),
    ],
)
def test_answers_that_are_not_what_was_asked_for_are_named(header: update_pb2.UpdateHeader, named: str) -> None:
    assert named in (vetting.statistics_fault(header, EVERYTHING, 2, 1000) or "accepted")


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (header_of(), "a label_distribution came where none was asked for"),
        (
            header_of(sums(START, 1, 0, 0, 1), label_distribution=[]),
            "evaluations: a confusion matrix came where none was asked for",
        ),
    ],
)
def test_answers_that_were_not_asked_for_are_named(header: update_pb2.UpdateHeader, named: str) -> None:
    evaluations_only = plan(evaluations=EVERYTHING.evaluations)

    assert vetting.statistics_fault(header, evaluations_only, 2, 1000) == named


def test_what_was_asked_for_is_accepted() -> None:
    assert vetting.statistics_fault(header_of(sums(START, 1, 0, 0, 1)), EVERYTHING, 2, 1000) is None


def test_evaluations_of_further_values_reach_clients_the_operator_and_the_method(
    asking: Callable[..., Bench],
) -> None:
    def tune(program: str, local_plan: assignment_pb2.LocalPlan) -> None:
        tuning = train(TaskSettings(method="asking", rounds=1, population=1), FINE_TUNED, start=TRAINED)
        tuning.train.program = program
        local_plan.instructions.append(tuning)
        local_plan.evaluations.append(evaluate("nearest", FINE_TUNED))

    with pytest.raises(Malformed, match="the bundle has no program 'sleep'"):
        asking(partial(tune, "sleep"))
    bench = asking(partial(tune, "step"), rounds=1)
    for client, correct in ((ALICE, 2), (BOB, 3)):
        labels = (START, TRAINED, "nearest")
        found = [update_pb2.EvaluationSums(label=each, count=5, correct=correct, loss=1.0) for each in labels]
        report(bench, client, *found)
    bench.advance()

    assert [(s.label, s.count, s.correct) for s in bench.show().rounds[0].personal] == [
        (START, 10, 5),
        (TRAINED, 10, 5),
        ("nearest", 10, 5),
    ]
    alices = {START: 2, TRAINED: 2, "nearest": 2}
    assert bench.task.values.shared["evaluated"] == [alices, dict.fromkeys(alices, 3)]


def test_a_noisy_distribution_reaches_the_method_also_after_a_restart(noisy: Bench) -> None:
    report(noisy, ALICE, shares=[0.75, -0.5])
    noisy.reopen()
    report(noisy, BOB, shares=[1e-17, 1.25])
    noisy.advance()

    # Doubles as they were sent, ascending by client.
    assert noisy.task.values.shared["shares"] == [[0.75, -0.5], [1e-17, 1.25]]


def test_a_member_without_its_noisy_distribution_is_quarantined(noisy: Bench) -> None:
    with pytest.raises(UpdateInvalid, match="label_distribution: found 0 numbers, must be 2"):
        report(noisy, ALICE)

    assert noisy.members()[ALICE].state == admin_pb2.MEMBER_STATE_QUARANTINED


def test_a_forgotten_clients_noisy_distribution_is_gone(noisy: Bench) -> None:
    report(noisy, ALICE, shares=[0.75, -0.5])
    noisy.forget(ALICE)

    (row,) = noisy.store.read(select(schema.members).where(schema.members.c.client == ALICE))
    assert row.label_distribution is None


def test_a_task_with_noisy_distributions_asks_its_trainers_for_nothing_exact(noisy: Bench) -> None:
    noisy.enrol([EVE], EVALUATORS)
    told = noisy.assignment(ALICE).local_plan
    for client in (ALICE, BOB):
        report(noisy, client, shares=[0.5, 0.5])
    noisy.advance()

    assert questions(told) == ["label_distribution"]
    assert not told.evaluations
    # The evaluator's photos are nobody's secret.
    assert questions(noisy.assignment(EVE).local_plan) == ["confusion"]


def test_an_evaluation_in_such_a_task_is_quarantined(noisy: Bench) -> None:
    with pytest.raises(UpdateInvalid, match="evaluations: found 'start', asked for were none"):
        report(noisy, ALICE, sums(START, 1, 0, 0, 1), shares=[0.5, 0.5])


@pytest.mark.parametrize("question", ["class_counts", "confusion"])
def test_a_method_that_asks_for_both_noise_and_truth_is_refused(asking: Callable[..., Bench], question: str) -> None:
    def both(local_plan: assignment_pb2.LocalPlan) -> None:
        ask_noisily(local_plan)
        getattr(local_plan.statistics.add(), question).SetInParent()

    with pytest.raises(Malformed, match=f"phase 'train' asks for {question} in a task with noisy label"):
        asking(both)


def test_personal_evaluation_in_such_a_task_is_refused_by_name(asking: Callable[..., Bench]) -> None:
    with pytest.raises(Malformed, match="personal_evaluation: found true, must be false: the method asks for noisy"):
        asking(ask_noisily, personal_evaluation=True)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan")])
def test_a_method_without_a_usable_epsilon_is_refused(asking: Callable[..., Bench], epsilon: float) -> None:
    def ask(local_plan: assignment_pb2.LocalPlan) -> None:
        local_plan.statistics.add().label_distribution.epsilon = epsilon

    with pytest.raises(Malformed, match=r"phase 'train': .* epsilon .*; it must be above 0 and finite"):
        asking(ask)


def test_a_header_with_three_confusion_matrices_of_a_hundred_classes_fits() -> None:
    # 10,000 photos an evaluation, spread as unevenly as costs most bytes: 78 numbers of 128 need two bytes each.
    numbers = [128] * 78 + [0] * (100 * 100 - 78)
    evaluations = [
        update_pb2.EvaluationSums(label=label, count=sum(numbers), correct=128, confusion=numbers, loss=1.0)
        for label in (START, TRAINED, FINE_TUNED)
    ]
    uploads = [update_pb2.UploadedBlob(name="weights", sha256=bytes(32), size=1 << 40)]
    header = header_of(*evaluations, bundle=bytes(32), uploads=uploads, class_counts=[10] * 100)

    assert len(wire.frame_update(header)) < wire.MAX_UPDATE_HEADER_BYTES
    assert 3 * 100**2 <= phases.MAX_CONFUSION_NUMBERS


def test_confusion_of_more_classes_than_a_header_holds_is_refused_by_name(bench: Bench) -> None:
    with pytest.raises(Malformed, match="confusion: found true with 160 classes and 2 evaluations a round, must be"):
        bench.make(tiny_bundle(classes=160), confusion=True)

    # 2 x 150 x 150 = 45,000 numbers
    assert bench.make(tiny_bundle(classes=150), confusion=True).state == admin_pb2.TASK_STATE_WAITING
