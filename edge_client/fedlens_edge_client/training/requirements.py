"""Checks of an assignment against the client's abilities and its owner's policy, before anything is fetched."""

import os
from collections.abc import Iterable

from fedlens_edge_client.engines.choice import ABILITIES, EngineName
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.policy import Policy
from fedlens_edge_client.training.label_distribution import NoisyAnswers
from fedlens_proto import keyed_hash, plan_check, plans, slots
from fedlens_proto.errors import PlanRefused
from fedlens_proto.manifest import program
from fedlens_proto.v1 import assignment_pb2, check_in_pb2, enrolment_pb2, manifest_pb2, update_pb2

_MODEL = "model"
_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_BESIDE_NOISE = "nothing measured exactly is answered beside a label distribution, whose noise it would undo"


def capabilities(
    engine: EngineName, models: Iterable[str] = (), policy: Policy | None = None
) -> enrolment_pb2.Capabilities:
    """The capabilities that a client sends when it enrols; without `models` it takes bundles of any model."""
    able, tables = ABILITIES[engine], (policy or Policy()).tables
    return enrolment_pb2.Capabilities(
        formats=[able.program_format],
        bundle_classes=able.bundle_classes,
        models=models,
        plan_format=plans.FORMAT,
        tables=["*"] if tables is None else sorted(tables),
    )


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
    evaluates = bool(plan.evaluations)
    if not policy.answer_class_counts and "class_counts" in asks:
        raise _forbidden("class counts are not answered")
    if not policy.answer_evaluation and evaluates:
        raise _forbidden("evaluation results are not answered")
    if not policy.answer_confusion and "confusion" in asks:
        raise _forbidden("confusion matrices are not answered")
    if "label_distribution" in asks:
        _check_label_distribution(plan, policy)
        if asks & {"class_counts", "confusion"} or evaluates:
            raise _forbidden(_BESIDE_NOISE)


def check_amounts(
    plan: assignment_pb2.LocalPlan, bundle: manifest_pb2.Manifest, photos: int, validation: int, policy: Policy
) -> None:
    """Refuse to learn from so few photos, or in so few batches, that the result would show single photos.

    Args:
        plan: The local plan.
        bundle: The manifest.
        photos: The number of train photos that the plan may train on and count.
        validation: The number of train photos that it may measure on instead.
        policy: The owner's.

    Raises:
        AssignmentFailed: With reason `policy`.
    """
    counts = plans.asks(plan, "class_counts") or plans.asks(plan, "label_distribution")
    trains = plans.reads_rows(plan, assignment_pb2.ROWS_TRAIN)
    measures = plans.reads_rows(plan, assignment_pb2.ROWS_VALIDATION)
    for reads, number, what in (
        (trains or measures or counts, photos, "to train on"),
        (measures, validation, "to measure on"),
    ):
        if reads and number < policy.least_train_photos:
            raise _forbidden(f"{number} photos {what}; it takes {policy.least_train_photos} or more")
    for each in plan.instructions:
        if each.HasField("train") and each.train.rows == assignment_pb2.ROWS_TRAIN:
            steps = plans.steps(each.train, photos, slots.batch_of(program(bundle, each.train.program)))
            if steps < policy.least_batches:
                raise _forbidden(
                    f"training {each.value!r} takes {steps} batches; it takes {policy.least_batches} or more"
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
    asked += _exact_tables(plan, bundle)
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


def check(
    assignment: assignment_pb2.Assignment, bundle: manifest_pb2.Manifest, policy: Policy, memory: int = _MEMORY
) -> None:
    """Refuse an assignment that this version, the bundle, the device or the policy does not support.

    Args:
        assignment: As the server sent it.
        bundle: The manifest that it names.
        policy: The owner's.
        memory: Bytes that a local plan may take; by default, all of the device's.

    Raises:
        AssignmentFailed: With reason `unsupported`, or `policy` for a table that is not allowed; it names the first
            such part.
    """
    plan = assignment.local_plan
    if len(assignment.seed) != keyed_hash.DIGEST_BYTES:
        raise _unsupported(f"not supported: a seed of {len(assignment.seed)} bytes")
    _check_plan(plan, bundle, assignment.answer, assignment.sets)
    if (needed := plans.memory(plan, bundle)) > memory:
        raise _unsupported(
            f"not supported: a local plan that takes {needed} bytes of memory; this device gives up to {memory}"
        )
    for name in sorted(plans.consents(plan, bundle)):
        if policy.tables is not None and name not in policy.tables:
            raise _forbidden(f"{name!r} does not leave this device; allow it with --allow-table {name}")
    if plans.asks(plan, "label_distribution") and _exact_tables(plan, bundle):
        raise _forbidden(_BESIDE_NOISE)


def assembling(model: check_in_pb2.CurrentModel, bundle: manifest_pb2.Manifest) -> assignment_pb2.LocalPlan:
    """The local plan that puts the client's current model together, as its only instruction.

    Raises:
        AssignmentFailed: The model cannot be put together in this bundle.
    """
    instruction = assignment_pb2.Instruction(value=_MODEL, assemble=assignment_pb2.Assemble(rules=model.rules))
    plan = assignment_pb2.LocalPlan(
        format=plans.FORMAT,
        instructions=[instruction],
        extractors=model.extractors,
        evaluations=[assignment_pb2.Evaluation(label=_MODEL, value=_MODEL)],
    )
    _check_plan(plan, bundle, assignment_pb2.ANSWER_EVALUATION, model.sets)
    return plan


def _check_plan(
    plan: assignment_pb2.LocalPlan,
    bundle: manifest_pb2.Manifest,
    answer: assignment_pb2.Answer,
    sets: Iterable[assignment_pb2.BlobSet],
) -> None:
    try:
        plan_check.check(plan, bundle, answer=answer, sets={entry.name for entry in sets})
    except PlanRefused as error:
        if error.code == "range":  # that the publisher has signed
            raise AssignmentFailed(update_pb2.FAILURE_REASON_POLICY, str(error)) from error
        raise _unsupported(str(error)) from error


def _exact_tables(plan: assignment_pb2.LocalPlan, bundle: manifest_pb2.Manifest) -> list[str]:
    """The uploaded tables that are measured on the client's own photos."""
    tables = plans.tables(plan, bundle)
    exact = [upload.name for upload in plan.uploads if plans.is_about_photos(plan, upload.value)]
    return [f"table {tables[name].makes!r}" for name in exact]


def _unsupported(what: str) -> AssignmentFailed:
    return AssignmentFailed(update_pb2.FAILURE_REASON_UNSUPPORTED, what)


def _forbidden(what: str) -> AssignmentFailed:
    return AssignmentFailed(update_pb2.FAILURE_REASON_POLICY, f"this client's policy: {what}")
