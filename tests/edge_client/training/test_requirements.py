from collections.abc import Callable
from pathlib import Path

import pytest

from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.policy import Policy
from fedlens_edge_client.training import requirements
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, update_pb2
from tests.edge_client.fakes import SEED, fedavg_plan
from tests.edge_client.linear import make_bundle

CONFUSION = assignment_pb2.ClientStatistic(confusion=assignment_pb2.Confusion())
Change = Callable[[assignment_pb2.Assignment], object]


def noisy_of(epsilon: float) -> assignment_pb2.ClientStatistic:
    return assignment_pb2.ClientStatistic(label_distribution=assignment_pb2.LabelDistribution(epsilon=epsilon))


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
    requirements.check(assignment(bundle), bundle.manifest)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda a: a.local_plan.statistics.add().label_distribution.SetInParent(), "epsilon 0, which must be above 0"),
        (lambda a: a.local_plan.statistics.append(noisy_of(1e-310)), "above 0 and finite"),
        (lambda a: a.local_plan.statistics.append(noisy_of(float("nan"))), "epsilon nan"),
        (lambda a: a.local_plan.statistics.extend([CONFUSION, CONFUSION]), "the question 'confusion' asked twice"),
        (lambda a: a.local_plan.statistics.add(), "the question 'unset'"),
        (lambda a: setattr(a.local_plan.upload, "codec", 99), "upload codec 99"),
        (lambda a: setattr(a.local_plan.upload, "codec", 0), "upload codec unset"),
        (lambda a: setattr(a.local_plan.upload, "base_set", "x"), "difference from set 'x', which is not among"),
        (lambda a: a.local_plan.evaluation.fine_tuning.add(), "program ''; the bundle has"),
        (lambda a: a.local_plan.extractors.append("cluster_0"), "1 extractors; the bundle takes 0 side by side"),
        (lambda a: a.local_plan.ClearField("start"), "without start rules"),
        (lambda a: a.local_plan.start[0].ClearField("source"), "names no set"),
        (lambda a: setattr(a.local_plan.start[0].source, "download", "x"), "set 'x', which is not among"),
        (lambda a: setattr(a.local_plan.stages[0], "program", "collect"), "program 'collect'; the bundle has"),
        (lambda a: setattr(a.local_plan.stages[0], "program", "predict"), "it trains nothing"),
        (lambda a: a.local_plan.stages[0].ClearField("epochs"), "without epochs or steps"),
        (lambda a: a.local_plan.stages[0].hyper_values.add(name="rho"), "hyper-parameter 'rho'"),
        (lambda a: a.local_plan.stages[0].hyper_values.add(name="mu", value=11), r"'mu' = 11\.0; allowed are 0\.0 to"),
        (lambda a: a.local_plan.stages[0].hyper_values.add(name="mu", value=float("nan")), "'mu' = nan"),
        (lambda a: a.local_plan.references.add(name="w"), "reference 'w'"),
        (lambda a: a.local_plan.keep.add(), "kept sets must have names"),
        (lambda a: setattr(a, "answer", 0), "an answer of kind 0"),
        (lambda a: setattr(a, "answer", assignment_pb2.ANSWER_EVALUATION), "an upload with an evaluation"),
        (lambda a: setattr(a, "seed", b"short"), "a seed of 5 bytes"),
    ],
)
def test_what_is_not_known_is_refused_by_name(bundle: Bundle, change: Change, named: str) -> None:
    changed = assignment(bundle)
    change(changed)
    with pytest.raises(AssignmentFailed, match=named) as caught:
        requirements.check(changed, bundle.manifest)

    assert caught.value.reason == update_pb2.FAILURE_REASON_UNSUPPORTED


def tune_instead(assignment: assignment_pb2.Assignment) -> None:
    assignment.local_plan.evaluation.fine_tuning.extend(assignment.local_plan.stages)
    assignment.local_plan.ClearField("stages")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda a: None, "reference 'global' unbound"),
        (tune_instead, "reference 'global' unbound"),
        (lambda a: a.local_plan.references.add(name="global"), "without a source"),
        (lambda a: a.local_plan.references.extend([assignment_pb2.ReferenceBinding(name="global")] * 2), "twice"),
    ],
)
def test_the_bundles_references_must_be_bound(tmp_path: Path, change: Change, named: str) -> None:
    bundle = make_bundle(tmp_path / "b", with_reference=True)
    changed = assignment(bundle)
    change(changed)
    with pytest.raises(AssignmentFailed, match=named):
        requirements.check(changed, bundle.manifest)


def test_the_initial_weights_are_a_set_that_every_bundle_brings_along(bundle: Bundle) -> None:
    changed = assignment(bundle)
    changed.local_plan.start[0].source.CopyFrom(assignment_pb2.SetSource(kept="mine", download="initial"))

    requirements.check(changed, bundle.manifest)


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
    asking.local_plan.ClearField("evaluation")
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
        lambda a: setattr(a.local_plan.evaluation, "at_start", True),
        lambda a: setattr(a.local_plan.evaluation, "at_end", True),
        lambda a: a.local_plan.evaluation.fine_tuning.add(),
    ],
)
def test_nothing_exact_is_answered_beside_a_label_distribution(bundle: Bundle, change: Change) -> None:
    asking = noisy(bundle, 1.0)
    change(asking)
    with pytest.raises(AssignmentFailed, match="beside a label distribution") as caught:
        requirements.check_policy(asking, Policy())

    assert caught.value.reason == update_pb2.FAILURE_REASON_POLICY
