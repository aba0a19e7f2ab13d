"""Phases as a method plans them, and as the settings of its task and its bundles settle them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedlens_proto import plans
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import blob_pb2, manifest_pb2
from fedlens_server.engine import phases
from fedlens_server.engine.task import TaskBundle
from fedlens_server.errors import Malformed
from fedlens_server.methods import METHODS
from fedlens_server.methods.fedavg import sharing_global_set
from fedlens_server.planning.local_plans import (
    CLASS_COUNTS,
    START,
    assemble,
    bind,
    derive,
    evaluate,
    label_distribution,
    plan,
    rule,
    source,
    train,
    upload,
    upload_table,
)
from fedlens_server.planning.method import Method, MethodDefinition, Phase, TaskPlan
from fedlens_server.planning.task_settings import SettingsError, TaskSettings
from tests.server.bundles import TinyBundle
from tests.server.concatenated import concatenated
from tests.server.methods.tasks import ALL, PROXIMAL, SUPCON, changed
from tests.server.networks import network

RATES = [
    manifest_pb2.HyperParameter(name=name, default_value=0.1, maximum=1.0) for name in ("lr_classifier", "lr_extractor")
]
BUNDLES = {
    "fedprox": [PROXIMAL],
    "fedclassavg": [SUPCON],
    "fedconcat": [network(), concatenated(2)],
    "fedrep": [changed(network(), hyper_parameters=RATES)],
}
# Others run programs that the tiny network lacks; their own tests plan and run them.
PLAIN = METHODS["fedavg"].bundle_settings
PLANNED = [name for name, found in METHODS.items() if name in BUNDLES or found.bundle_settings is PLAIN]
OPTIONS = {"fedconcat": {"clusters": 2, "classifier_rounds": 1}}
SETTINGS = TaskSettings(method="fedavg", rounds=3, population=2)
GLOBAL = source(download="global")


def planned(method: str, bundles: Sequence[TinyBundle] = (), **settings: Any) -> tuple[Phase, ...]:
    """All phases of a task."""
    given = SETTINGS.model_copy(update={"method": method, "options": OPTIONS.get(method, {}), **settings})
    taken = bundles or BUNDLES.get(method, [network()])
    return phases.plan(given, tuple(TaskBundle(bundle.manifest, bundle.parsed) for bundle in taken))[1]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Plan a task with a method that has one phase with this plan."""

    def run(
        local_plan: pb.LocalPlan, *bundles: TinyBundle, model: tuple[pb.Rule, ...] | None = None, **settings: Any
    ) -> tuple[Phase, ...]:
        def method(task: TaskPlan) -> Method:
            phase = Phase(name="train", rounds=1, cohort=None, plan=local_plan, model=model)
            return replace(sharing_global_set(task, local_plan), phases=(phase,))

        monkeypatch.setitem(METHODS, "given", MethodDefinition(method))
        return planned("given", bundles, **settings)

    yield run


def with_derivation(count: int = 2, rows: bool = True) -> TinyBundle:
    """The network's bundle with a program that makes the table `sums` of the model, over rows or without."""
    manifest = network().parsed
    floats = blob_pb2.DTYPE_FLOAT32
    program = manifest.programs.add(name="sums", makes="sums", files=manifest.programs[0].files)
    for tensor in manifest.tensors:
        kind = manifest_pb2.SLOT_KIND_REFERENCE
        program.inputs.add(kind=kind, name=f"model/{tensor.name}", dtype=tensor.dtype, shape=tensor.shape)
    kind = manifest_pb2.SLOT_KIND_RESULT
    if rows:
        program.inputs.add(kind=manifest_pb2.SLOT_KIND_INPUT, dtype=floats, shape=(4, 3))
        kind = manifest_pb2.SLOT_KIND_ACCUMULATOR
        program.inputs.add(kind=kind, name="sum", dtype=floats, shape=(count,))
    program.outputs.add(kind=kind, name="sum", dtype=floats, shape=(count,))
    return TinyBundle(manifest.SerializeToString(deterministic=True), network().parts, network().initial)


def sending_sums(rows: pb.Rows = pb.ROWS_TRAIN, **more: Any) -> pb.LocalPlan:
    """Train, and upload a table of the trained model."""
    return plan(
        assemble(START, rule(GLOBAL)),
        train(SETTINGS),
        derive("table", "sums", bind("model", source(value="trained")), rows=rows),
        uploads=[upload(SETTINGS), upload_table("sums", "table")],
        **more,
    )


@pytest.mark.parametrize("method", PLANNED)
def test_every_method_ends_with_a_personal_evaluation_of_the_last_phases_model_if_asked(method: str) -> None:
    *_, last, evaluation = planned(method, personal_evaluation=True)

    assert (evaluation.name, evaluation.rounds, evaluation.cohort) == ("personal-evaluation", 1, None)
    assert evaluation.model_rules == last.model_rules
    assert [each.label for each in evaluation.plan.evaluations] == ["start"]
    assert not evaluation.plan.uploads and not evaluation.plan.keeps and not evaluation.plan.statistics
    assert evaluation.plan.extractors == last.plan.extractors


@pytest.mark.parametrize("method", PLANNED)
def test_fine_tuning_is_the_training_of_the_last_phase(method: str) -> None:
    *_, last, evaluation = planned(method, personal_evaluation=True, personal_fine_tuning=True)

    trainings = [each.train for each in last.plan.instructions if each.HasField("train")]
    assert [each.train for each in evaluation.plan.instructions[1:]] == trainings
    assert evaluation.plan.instructions[-1].value == "fine_tuned"
    assert [each.label for each in evaluation.plan.evaluations] == ["start", "fine_tuned"]


def test_fine_tuning_trains_the_model_that_the_plan_trains_last(run: Any) -> None:
    own = source(state="own", download="global")
    near = [bind("global", source(value="mine"))]
    two_models = plan(
        assemble(START, rule(GLOBAL)),
        train(SETTINGS, bindings=[bind("global", source(value=START))]),
        assemble("mine", rule(own)),
        train(SETTINGS, "half", start="mine", hyper={"mu": 0.5}, bindings=near),
        train(SETTINGS, "tuned", start="half", bindings=near),
        uploads=[upload(SETTINGS)],
        evaluations=[evaluate("tuned")],
    )

    settings = {"personal_evaluation": True, "personal_fine_tuning": True}
    evaluation = run(two_models, PROXIMAL, model=(rule(own),), **settings)[-1]
    start, half, tuned = evaluation.plan.instructions

    assert list(start.assemble.rules) == [rule(own)]
    assert (half.value, half.train.start, half.train.hyper_values[0].value) == ("half", "start", 0.5)
    assert (tuned.value, tuned.train.start) == ("fine_tuned", "half")
    assert {each.train.bindings[0].source.value for each in (half, tuned)} == {"start"}


def test_fine_tuning_derives_what_the_training_reads_and_leaves_out_what_only_the_start_needs(run: Any) -> None:
    derived = plan(
        assemble("own", rule(source(state="own", download="global"))),
        derive("mean", "step", bind("weights", source(value="own"))),
        derive("unread", "step"),
        derive(START, "step", bind("weights", source(value="mean"))),
        train(SETTINGS, bindings=[bind("global", source(value="mean"))]),
        uploads=[upload(SETTINGS)],
    )

    found = phases.fine_tuning(derived)

    assert [each.value for each in found] == ["own", "mean", "fine_tuned"]
    assert (found[-1].train.start, found[-1].train.bindings[0].source.value) == ("start", "mean")


def test_a_personal_evaluation_without_a_model_is_refused(run: Any) -> None:
    with pytest.raises(SettingsError, match="personal_evaluation: found true, must be false: clients have no model in"):
        run(plan(statistics=[CLASS_COUNTS], evaluations=()), personal_evaluation=True)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            (rule(GLOBAL, pb.TensorSelector(names=ALL[1:])),),
            r"phase 'train': .*no rule selects tensor \['bn.batches'\]",
        ),
        ((rule(source(value="trained")),), "phase 'train': .*value 'trained' is not made before"),
    ],
)
def test_rules_that_give_no_model_are_refused(run: Any, model: tuple[pb.Rule, ...], reason: str) -> None:
    ordinary = plan(assemble(START, rule(GLOBAL)), train(SETTINGS), uploads=[upload(SETTINGS)])

    with pytest.raises(Malformed, match=reason):
        run(ordinary, model=model)


def test_the_global_model_is_evaluated_with_the_phases_extractors_and_with_confusion_if_asked() -> None:
    (*_, last) = planned("fedconcat")

    found = phases.global_evaluation(SETTINGS.model_copy(update={"confusion": True}), last)

    (model,) = found.instructions
    assert [each.source for each in model.assemble.rules] == [GLOBAL]
    assert [(each.label, each.value) for each in found.evaluations] == [("global", model.value)]
    assert list(found.extractors) == ["cluster_0", "cluster_1"]
    assert plans.asks(found, "confusion")
    phases.check(found, concatenated(2).parsed, "concatenate")


def test_beside_noisy_labels_nothing_is_evaluated_nor_made_for_that_alone(run: Any) -> None:
    (phase,) = run(
        plan(
            assemble(START, rule(GLOBAL)),
            train(SETTINGS),
            train(SETTINGS, "more", start="trained"),
            train(SETTINGS, "most", start="more"),
            uploads=[upload(SETTINGS)],
            statistics=[label_distribution(1.0)],
            evaluations=[evaluate("most")],
        )
    )

    assert [each.value for each in phase.plan.instructions] == ["start", "trained"]
    assert not phase.plan.evaluations


def test_what_clients_predict_with_stays_when_no_instruction_makes_it_any_more(run: Any) -> None:
    (phase,) = run(
        plan(assemble(START, rule(GLOBAL)), evaluations=[evaluate(START)], statistics=[label_distribution(1)])
    )

    assert not phase.plan.instructions
    assert phase.model_rules == (rule(GLOBAL),)


def test_a_table_of_photos_is_refused_beside_noisy_labels_and_one_of_weights_is_not(run: Any) -> None:
    noisy: dict[str, Any] = {"statistics": [label_distribution(1.0)], "evaluations": ()}

    with pytest.raises(Malformed, match="phase 'train' asks for table 'sums' in a task with noisy label distributions"):
        run(sending_sums(**noisy), with_derivation())
    assert len(run(sending_sums(pb.ROWS_UNSPECIFIED, **noisy), with_derivation(rows=False))) == 1


def test_bundles_whose_uploaded_tables_differ_are_refused(run: Any) -> None:
    with pytest.raises(Malformed, match="phase 'train': bundles whose tables differ in name, type or shape"):
        run(sending_sums(), with_derivation(), with_derivation(3))
    assert len(run(sending_sums(), with_derivation(), changed(with_derivation(), model="other"))) == 1
