from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.policy import EMULATED, Policy
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_edge_client.training import requirements
from fedlens_edge_client.training.label_distribution import NoisyAnswers
from fedlens_proto import plans as proto_plans
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2
from tests.edge_client.fakes import SEED, fedavg_plan, start_of, train, train_of
from tests.vectors import plan_arithmetic, plans

CONFUSION = assignment_pb2.Statistic(confusion=assignment_pb2.Confusion())
Change = Callable[[assignment_pb2.Assignment], object]


def noisy_of(epsilon: float) -> assignment_pb2.Statistic:
    return assignment_pb2.Statistic(label_distribution=assignment_pb2.LabelDistribution(epsilon=epsilon))


def assignment(bundle: Bundle) -> assignment_pb2.Assignment:
    return assignment_pb2.Assignment(
        task=1,
        round=1,
        bundle=bundle.id,
        seed=SEED,
        sets=[assignment_pb2.BlobSet(name="global", sha256=bytes(32), size=1)],
        local_plan=fedavg_plan(),
        answer=assignment_pb2.ANSWER_UPDATE,
    )


def test_an_ordinary_assignment_is_accepted(bundle: Bundle) -> None:
    requirements.check_pinned(bundle.id, Policy(bundles=frozenset({bundle.id})))
    requirements.check_policy(assignment(bundle), Policy())
    requirements.check(assignment(bundle), bundle.manifest, Policy())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda a: a.local_plan.statistics.append(noisy_of(1e-310)), "above 0 and finite"),
        (lambda a: setattr(train_of(a.local_plan), "program", "collect"), "program 'collect'; it has"),
        (lambda a: setattr(start_of(a.local_plan), "download", "x"), r"set \['x'\], which is not among"),
        (lambda a: setattr(a, "answer", 0), "an answer of kind 0"),
        (lambda a: setattr(a, "seed", b"short"), "a seed of 5 bytes"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(bundle: Bundle, change: Change, named: str) -> None:
    changed = assignment(bundle)
    change(changed)
    with pytest.raises(AssignmentFailed, match=named) as caught:
        requirements.check(changed, bundle.manifest, Policy())

    assert caught.value.reason == update_pb2.FAILURE_REASON_UNSUPPORTED


# `start` and `trained` have 8 floats each. `step` takes the weights, 4 rows of 3 floats and 2 hyper-parameters, and
# gives the weights, a loss and 4 times 2 logits; while it runs, more is taken than by any evaluation.
NEEDED = 4 * (8 + 8) + 4 * (8 + 12 + 2 + 8 + 1 + 8)


def test_a_plan_is_refused_that_takes_more_memory_than_there_is(bundle: Bundle) -> None:
    requirements.check(assignment(bundle), bundle.manifest, Policy(), memory=NEEDED)

    named = f"takes {NEEDED} bytes of memory; this device gives up to {NEEDED - 1}"
    with pytest.raises(AssignmentFailed, match=named) as caught:
        requirements.check(assignment(bundle), bundle.manifest, Policy(), memory=NEEDED - 1)

    assert caught.value.reason == update_pb2.FAILURE_REASON_UNSUPPORTED


# Each training is the last to read its start, so that two of the four values are held at a time.
def test_a_value_that_is_read_no_more_takes_no_memory(bundle: Bundle) -> None:
    asking = assignment(bundle)
    plan = asking.local_plan
    del plan.instructions[1:], plan.evaluations[:]
    chain = (("one", "start"), ("two", "one"), ("trained", "two"))
    plan.instructions.extend(train(value, start, epochs=1) for value, start in chain)

    requirements.check(asking, bundle.manifest, Policy(), memory=NEEDED)


def test_the_initial_weights_are_a_set_that_every_bundle_brings_along(bundle: Bundle) -> None:
    changed = assignment(bundle)
    start_of(changed.local_plan).CopyFrom(assignment_pb2.Source(state="mine", download="initial"))

    requirements.check(changed, bundle.manifest, Policy(tables=frozenset({"state/mine"})))


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (Policy(answer_class_counts=False), "class counts"),
        (Policy(answer_evaluation=False), "evaluation"),
        (Policy(answer_confusion=False), "confusion matrices"),
    ],
)
def test_a_policy_refuses_with_its_own_reason(bundle: Bundle, policy: Policy, named: str) -> None:
    asking = assignment(bundle)
    asking.local_plan.statistics.add().class_counts.SetInParent()
    asking.local_plan.statistics.append(CONFUSION)
    with pytest.raises(AssignmentFailed, match=named) as caught:
        requirements.check_policy(asking, policy)

    assert caught.value.reason == update_pb2.FAILURE_REASON_POLICY


def noisy(bundle: Bundle, epsilon: float) -> assignment_pb2.Assignment:
    """Asks for nothing but the label distribution."""
    asking = assignment(bundle)
    asking.local_plan.ClearField("evaluations")
    asking.local_plan.statistics.append(noisy_of(epsilon))
    return asking


def test_a_label_distribution_is_answered_within_the_policys_epsilons(bundle: Bundle) -> None:
    for epsilon in (0.5, 8.0):
        requirements.check_policy(noisy(bundle, epsilon), Policy(least_epsilon=0.5, most_epsilon=8.0))
    requirements.check_policy(noisy(bundle, 1e-3), Policy())


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (Policy(answer_label_distribution=False), "label distributions are not answered"),
        (Policy(least_epsilon=2.0), r"epsilon 1; answered are 2 to inf"),
        (Policy(most_epsilon=0.5), r"epsilon 1; answered are 0 to 0\.5"),
    ],
)
def test_a_policy_refuses_a_label_distribution(bundle: Bundle, policy: Policy, named: str) -> None:
    with pytest.raises(AssignmentFailed, match=named) as caught:
        requirements.check_policy(noisy(bundle, 1.0), policy)

    assert caught.value.reason == update_pb2.FAILURE_REASON_POLICY


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.local_plan.statistics.add().class_counts.SetInParent(),
        lambda a: a.local_plan.statistics.append(CONFUSION),
        lambda a: a.local_plan.evaluations.add(label="start", value="start"),
    ],
)
def test_nothing_exact_is_answered_beside_a_label_distribution(bundle: Bundle, change: Change) -> None:
    asking = noisy(bundle, 1.0)
    change(asking)
    with pytest.raises(AssignmentFailed, match="beside a label distribution") as caught:
        requirements.check_policy(asking, Policy())

    assert caught.value.reason == update_pb2.FAILURE_REASON_POLICY


def measuring(
    manifest: manifest_pb2.Manifest, rows: assignment_pb2.Rows = assignment_pb2.ROWS_TRAIN
) -> assignment_pb2.Assignment:
    """Sends the table `sums`, measured on the client's own photos."""
    plan = plans.plan(
        plans.assemble("start"),
        plans.derive("s", "sums", rows, model=plans.source(value="start")),
        uploads=[plans.upload("s", "sums")],
        evaluations=[],
    )
    return assignment_pb2.Assignment(
        seed=SEED,
        sets=[assignment_pb2.BlobSet(name="global", sha256=bytes(32), size=1)],
        local_plan=plan,
        answer=assignment_pb2.ANSWER_UPDATE,
    )


@pytest.fixture
def manifest() -> manifest_pb2.Manifest:
    return plan_arithmetic.manifest_of(manifest_pb2.LAST_BATCH_MASKED, bytes(32), 1)


@pytest.mark.parametrize("tables", [frozenset({"sums"}), None])
def test_a_table_is_answered_if_the_owner_allows_its_name(
    manifest: manifest_pb2.Manifest, tables: frozenset[str] | None
) -> None:
    requirements.check(measuring(manifest), manifest, Policy(tables=tables))


def test_no_table_is_answered_unless_the_owner_allows_it(manifest: manifest_pb2.Manifest) -> None:
    with pytest.raises(AssignmentFailed, match="'sums' does not leave this device; allow it with --allow") as caught:
        requirements.check(measuring(manifest), manifest, Policy())

    assert caught.value.reason == update_pb2.FAILURE_REASON_POLICY


def test_a_hyper_parameter_outside_the_range_of_the_manifest_is_against_the_policy(
    manifest: manifest_pb2.Manifest,
) -> None:
    asking = measuring(manifest)
    faster = plans.train(hyper_values=[assignment_pb2.HyperValue(name="lr", value=1001.0)])
    asking.local_plan.CopyFrom(plans.plan(plans.assemble("start"), faster, evaluations=[]))

    with pytest.raises(AssignmentFailed, match="lr is 1001, allowed are 0 to 1000") as caught:
        requirements.check(asking, manifest, Policy())
    assert caught.value.reason == update_pb2.FAILURE_REASON_POLICY


def rule(source: assignment_pb2.Source, *names: str) -> assignment_pb2.Rule:
    return assignment_pb2.Rule(source=source, tensors=assignment_pb2.TensorSelector(names=names))


OWN = plans.source(state="mine", download="initial")
START = plans.assemble("start", rule(OWN))


@pytest.mark.parametrize(
    "instructions",
    [
        [plans.assemble("trained", rule(OWN))],
        [START, plans.train()],
        [plans.assemble("own", rule(OWN)), plans.assemble("start", rule(plans.source(value="own"))), plans.train()],
        [plans.assemble("start"), plans.train(bindings=[assignment_pb2.Binding(reference="global", source=OWN)])],
        [
            plans.assemble("own", rule(OWN)),
            plans.assemble("start"),
            plans.train(bindings=[assignment_pb2.Binding(reference="global", source=plans.source(value="own"))]),
        ],
    ],
    ids=["as-it-is", "trained", "through-another-value", "pulled-towards", "pulled-towards-another-value"],
)
def test_client_state_is_not_uploaded_unless_the_owner_allows_its_name(
    manifest: manifest_pb2.Manifest, instructions: list[assignment_pb2.Instruction]
) -> None:
    asking = measuring(manifest)
    asking.local_plan.CopyFrom(plans.plan(*instructions, evaluations=[]))

    with pytest.raises(AssignmentFailed, match="'state/mine' does not leave this device; allow it") as caught:
        requirements.check(asking, manifest, Policy())
    assert caught.value.reason == update_pb2.FAILURE_REASON_POLICY
    requirements.check(asking, manifest, Policy(tables=frozenset({"state/mine"})))


def test_client_state_in_tensors_that_stay_needs_no_consent(manifest: manifest_pb2.Manifest) -> None:
    asking = measuring(manifest)
    start = plans.assemble("start", rule(OWN, "fc.bias"), rule(plans.source("global")))
    sent = plans.upload(tensors=assignment_pb2.TensorSelector(names=["fc.weight"]))
    asking.local_plan.CopyFrom(plans.plan(start, plans.train(), uploads=[sent], evaluations=[]))

    requirements.check(asking, manifest, Policy())


@pytest.mark.parametrize(
    ("photos", "length", "told"),
    [
        (7, {"epochs": 4}, "this client's policy: 7 photos to train on; it takes 8 or more"),
        (8, {"steps": 1}, "this client's policy: training 'trained' takes 1 batches; it takes 2 or more"),
        (8, {"epochs": 1}, None),  # two batches of 4
    ],
)
def test_too_few_photos_or_batches_are_not_learnt_from(
    manifest: manifest_pb2.Manifest, photos: int, length: dict[str, int], told: str | None
) -> None:
    plan = plans.plan(plans.assemble("start"), plans.train(**length))

    requirements.check_amounts(plan, manifest, photos, 0, EMULATED)
    if told is None:
        requirements.check_amounts(plan, manifest, photos, 0, Policy())
        return
    with pytest.raises(AssignmentFailed) as caught:
        requirements.check_amounts(plan, manifest, photos, 0, Policy())
    assert (str(caught.value), caught.value.reason) == (told, update_pb2.FAILURE_REASON_POLICY)


def test_a_derivation_over_few_photos_is_refused_too(manifest: manifest_pb2.Manifest) -> None:
    with pytest.raises(AssignmentFailed, match="7 photos to train on"):
        requirements.check_amounts(measuring(manifest).local_plan, manifest, 7, 0, Policy())
    requirements.check_amounts(plans.plan(plans.assemble("start")), manifest, 0, 0, Policy())


def test_a_measurement_on_few_validation_photos_is_refused_too(manifest: manifest_pb2.Manifest) -> None:
    plan = measuring(manifest, rows=assignment_pb2.ROWS_VALIDATION).local_plan

    with pytest.raises(AssignmentFailed, match="7 photos to measure on; it takes 8 or more"):
        requirements.check_amounts(plan, manifest, 28, 7, Policy())
    requirements.check_amounts(plan, manifest, 32, 8, Policy())


@pytest.mark.parametrize("kind", ["class_counts", "label_distribution"])
def test_few_photos_are_not_counted_either(manifest: manifest_pb2.Manifest, kind: str) -> None:
    plan = assignment_pb2.LocalPlan(format=1)
    getattr(plan.statistics.add(), kind).SetInParent()

    with pytest.raises(AssignmentFailed, match="7 photos to train on; it takes 8 or more"):
        requirements.check_amounts(plan, manifest, 7, 0, Policy())
    requirements.check_amounts(plan, manifest, 8, 0, Policy())


def test_a_table_about_own_photos_counts_as_exact_beside_and_after_noise(
    manifest: manifest_pb2.Manifest, tmp_path: Path
) -> None:
    asking, allowed = measuring(manifest), Policy(tables=None)
    asking.local_plan.statistics.append(noisy_of(1.0))
    with pytest.raises(AssignmentFailed, match="beside a label distribution"):
        requirements.check(asking, manifest, allowed)
    with closing(StateFolder.open(tmp_path / "state", "https://fl.example.org")) as state:
        answers = NoisyAnswers(state)
        plan = measuring(manifest).local_plan
        requirements.check_earlier_answers(plan, manifest, answers, allowed)
        answers.answer(manifest.class_names, [1, 1], 1.0)

        with pytest.raises(AssignmentFailed, match="table 'sums' are not answered to a server that has a label"):
            requirements.check_earlier_answers(plan, manifest, answers, allowed)


@pytest.mark.parametrize("source", [plans.source(state="sums"), assignment_pb2.Source(label_counts=True)])
def test_a_table_from_labels_or_from_what_was_kept_counts_as_exact_too(source: assignment_pb2.Source) -> None:
    plan = plans.plan(
        plans.derive("means", "means", sums=source),
        plans.derive("again", "means", sums=plans.source(value="means")),
        plans.derive("other", "means", sums=plans.source(download="sums")),
        uploads=[],
        evaluations=[],
    )
    found = [proto_plans.is_about_photos(plan, each.value) for each in plan.instructions]
    assert found == [True, True, False]


def test_capabilities_tell_the_language_and_the_tables() -> None:
    some, every = Policy(tables=frozenset({"sums", "means"})), Policy(tables=None)
    told = [requirements.capabilities(EngineName.TORCH, (), policy) for policy in (None, some, every)]

    assert [list(each.tables) for each in told] == [[], ["means", "sums"], ["*"]]
    assert {each.plan_format for each in told} == {1}
