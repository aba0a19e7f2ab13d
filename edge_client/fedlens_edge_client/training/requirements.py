"""Checks of an assignment against the client's abilities and its owner's policy, before anything is fetched."""

from collections.abc import Iterable

from fedlens_edge_client.engines.choice import ABILITIES, EngineName
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.policy import Policy
from fedlens_edge_client.training.label_distribution import NoisyAnswers, is_usable
from fedlens_proto import keyed_hash, manifest
from fedlens_proto.blob import FLOATS
from fedlens_proto.v1 import assignment_pb2, enrolment_pb2, manifest_pb2, update_pb2


def capabilities(engine: EngineName, models: Iterable[str] = ()) -> enrolment_pb2.Capabilities:
    """The capabilities that a client sends when it enrols; without `models` it takes bundles of any model."""
    able = ABILITIES[engine]
    return enrolment_pb2.Capabilities(formats=[able.program_format], bundle_classes=able.bundle_classes, models=models)


def check_pinned(bundle: bytes, policy: Policy) -> None:
    """Refuse a bundle, by its digest, that the owner of this client has not pinned, for any use.

    Raises:
        AssignmentFailed: With reason `policy`.
    """
    if policy.bundles is not None and bundle not in policy.bundles:
        raise _forbidden(f"bundle {bundle.hex()} is not among the pinned ones")


def check_policy(assignment: assignment_pb2.Assignment, policy: Policy) -> None:
    """Refuse requests that the policy forbids for every bundle.

    Raises:
        AssignmentFailed: With reason `policy`.
    """
    plan = assignment.local_plan
    asks = {ask.WhichOneof("kind") for ask in plan.statistics}
    evaluates = plan.evaluation.at_start or plan.evaluation.at_end or bool(plan.evaluation.fine_tuning)
    if not policy.answer_class_counts and "class_counts" in asks:
        raise _forbidden("class counts are not answered")
    if not policy.answer_evaluation and evaluates:
        raise _forbidden("evaluation results are not answered")
    if not policy.answer_confusion and "confusion" in asks:
        raise _forbidden("confusion matrices are not answered")
    if "label_distribution" in asks:
        _check_label_distribution(plan, policy)
        if asks & {"class_counts", "confusion"} or evaluates:
            raise _forbidden(
                "nothing measured exactly is answered beside a label distribution, whose noise it would undo"
            )


def check_earlier_answers(
    plan: assignment_pb2.LocalPlan, bundle: manifest_pb2.Manifest, answers: NoisyAnswers, policy: Policy
) -> None:
    """Refuse exact statistics to a server that has noisy ones of the same classes, in any task.

    Raises:
        AssignmentFailed: With reason `policy`.
    """
    exact = {"class_counts": "class counts", "confusion": "confusion matrices"}
    asked = [exact[question] for ask in plan.statistics if (question := ask.WhichOneof("kind")) in exact]
    if asked and not policy.answer_exactly_after_noise and answers.has(bundle.class_names):
        raise _forbidden(
            f"{asked[0]} are not answered to a server that has a label distribution of the same classes, whose noise "
            "they would undo"
        )


def _check_label_distribution(plan: assignment_pb2.LocalPlan, policy: Policy) -> None:
    if not policy.answer_label_distribution:
        raise _forbidden("label distributions are not answered")
    for ask in plan.statistics:
        epsilon = ask.label_distribution.epsilon
        if ask.HasField("label_distribution") and not policy.least_epsilon <= epsilon <= policy.most_epsilon:
            raise _forbidden(
                f"a label distribution with epsilon {epsilon:g}; answered are {policy.least_epsilon:g} to "
                f"{policy.most_epsilon:g}"
            )


def check(assignment: assignment_pb2.Assignment, bundle: manifest_pb2.Manifest) -> None:
    """Refuse an assignment that this version or the bundle does not support, naming the first such part.

    Raises:
        AssignmentFailed: With reason `unsupported`.
    """
    plan = assignment.local_plan
    sets = {entry.name for entry in assignment.sets} | {manifest.INITIAL}
    if len(assignment.seed) != keyed_hash.DIGEST_BYTES:
        raise _unsupported(f"a seed of {len(assignment.seed)} bytes")
    if not plan.start:
        raise _unsupported("a local plan without start rules")
    for rule in plan.start:
        _check_source(rule.source, sets)
    _check_asks(plan)
    _check_answer(assignment)
    _check_references(plan, bundle, sets)
    if len(plan.extractors) != bundle.concatenated:
        raise _unsupported(f"{len(plan.extractors)} extractors; the bundle takes {bundle.concatenated} side by side")
    for stage in (*plan.stages, *plan.evaluation.fine_tuning):
        _check_stage(stage, bundle)
    names = [keep.set for keep in plan.keep]
    if "" in names or len(set(names)) != len(names):
        raise _unsupported(f"kept sets must have names, each once: {names}")


def _check_asks(plan: assignment_pb2.LocalPlan) -> None:
    asked: set[str] = set()
    for ask in plan.statistics:
        question = ask.WhichOneof("kind")
        if question is None:
            raise _unsupported("the question 'unset'")
        if question in asked:
            raise _unsupported(f"the question {question!r} asked twice")
        asked.add(question)
        epsilon = ask.label_distribution.epsilon
        if question == "label_distribution" and not is_usable(epsilon):
            raise _unsupported(f"a label distribution with epsilon {epsilon:g}, which must be above 0 and finite")


def _check_answer(assignment: assignment_pb2.Assignment) -> None:
    plan = assignment.local_plan
    if assignment.answer not in (assignment_pb2.ANSWER_UPDATE, assignment_pb2.ANSWER_EVALUATION):
        raise _unsupported(f"an answer of kind {assignment.answer}")
    if not plan.HasField("upload"):
        return
    if assignment.answer == assignment_pb2.ANSWER_EVALUATION:
        raise _unsupported("an upload with an evaluation")
    if plan.upload.codec not in FLOATS:
        raise _unsupported(f"upload codec {plan.upload.codec or 'unset'}")
    if plan.upload.base_set and plan.upload.base_set not in {entry.name for entry in assignment.sets}:
        raise _unsupported(
            f"an upload as difference from set {plan.upload.base_set!r}, which is not among the assignment's"
        )


def _check_references(plan: assignment_pb2.LocalPlan, bundle: manifest_pb2.Manifest, sets: set[str]) -> None:
    known = {reference.name for reference in bundle.references}
    bound = [binding.name for binding in plan.references]
    if len(set(bound)) != len(bound):
        raise _unsupported(f"a reference bound twice: {bound}")
    if unknown := sorted(set(bound) - known):
        raise _unsupported(f"reference {unknown[0]!r}, which the bundle does not have")
    trains = plan.stages or plan.evaluation.fine_tuning
    if trains and (missing := sorted(known - set(bound))):
        raise _unsupported(f"a local plan that leaves the bundle's reference {missing[0]!r} unbound")
    for binding in plan.references:
        source = binding.WhichOneof("source")
        if source is None:
            raise _unsupported(f"reference {binding.name!r} without a source")
        if source == "set":
            _check_source(binding.set, sets)


def _check_stage(stage: assignment_pb2.Stage, bundle: manifest_pb2.Manifest) -> None:
    known = [program.name for program in bundle.programs]
    if stage.program not in known:
        raise _unsupported(f"program {stage.program!r}; the bundle has {', '.join(known)}")
    outputs = {slot.kind for slot in manifest.program(bundle, stage.program).outputs}
    if manifest_pb2.SLOT_KIND_WEIGHT not in outputs:
        raise _unsupported(f"program {stage.program!r} as a stage; it trains nothing")
    if stage.WhichOneof("length") is None:
        raise _unsupported("a stage without epochs or steps")
    ranges = {hyper.name: hyper for hyper in bundle.hyper_parameters}
    for value in stage.hyper_values:
        allowed = ranges.get(value.name)
        if allowed is None:
            raise _unsupported(f"hyper-parameter {value.name!r}, which the bundle does not have")
        if not allowed.minimum <= value.value <= allowed.maximum:
            raise _unsupported(
                f"hyper-parameter {value.name!r} = {value.value}; allowed are {allowed.minimum} to {allowed.maximum}"
            )


def _check_source(source: assignment_pb2.SetSource, sets: set[str]) -> None:
    if not source.kept and not source.download:
        raise _unsupported("a source that names no set")
    if source.download and source.download not in sets:
        raise _unsupported(f"set {source.download!r}, which is not among the assignment's")


def _unsupported(what: str) -> AssignmentFailed:
    return AssignmentFailed(update_pb2.FAILURE_REASON_UNSUPPORTED, f"not supported: {what}")


def _forbidden(what: str) -> AssignmentFailed:
    return AssignmentFailed(update_pb2.FAILURE_REASON_POLICY, f"this client's policy: {what}")
