"""The phases of a task: planned by its method, settled by its settings, and local plans that its bundles can run.

A task with noisy label distributions asks its trainers for nothing exact: no class counts, evaluations or confusion
matrices, and no tables about photos, from which the noise could be subtracted. Evaluators still measure the global
model on their own photos. So it is with central privacy, whose promise is about the models alone.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row

from fedlens_proto import plan_check, plans, plugins
from fedlens_proto.errors import PlanRefused
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.engine.task import Task, TaskBundle
from fedlens_server.errors import Malformed, Unavailable
from fedlens_server.methods import by_name
from fedlens_server.planning import bundles as checks
from fedlens_server.planning import local_plans, options, task_settings
from fedlens_server.planning.batch_norm import with_batch_norm
from fedlens_server.planning.local_plans import FINE_TUNED, START, assemble, evaluate, rule, source
from fedlens_server.planning.method import GLOBAL, Method, Phase, TaskPlan
from fedlens_server.planning.task_settings import SettingsError, TaskSettings
from fedlens_server.rules.fitting import need_fitting
from fedlens_server.rules.privacy_plan import need_private
from fedlens_server.rules.robust import Bounds

PERSONAL_EVALUATION = "personal-evaluation"
log = logging.getLogger(__name__)
# Confusion matrices of numbers below 128 in a header of 64 KiB; larger numbers take the rest.
MAX_CONFUSION_NUMBERS = 48_000


def plan(settings: TaskSettings, bundles: tuple[TaskBundle, ...]) -> tuple[Method, tuple[Phase, ...], int]:
    """The method, all phases as clients get them, and the number of phases that are the method's own.

    Raises:
        SettingsError: There is no such method, or a setting does not fit it or the bundles.
        Malformed: A local plan does not fit the bundles, or would undo the noise of a label distribution; or the
            method's package is missing or faulty.
    """
    definition = by_name(settings.method)
    manifests = tuple(bundle.manifest for bundle in bundles)
    task = TaskPlan(settings=settings, manifests=manifests, options=options.read(settings, definition.options))
    for manifest in task.ordinary:
        task_settings.check_hyper_values(settings, manifest.hyper_parameters)
    need_fitting(settings, definition)
    try:
        method = with_batch_norm(definition.for_task, task)
        phases = list(method.phases)
    except Malformed:
        raise
    except Exception as error:
        log.exception("a method failed")
        found = f"{settings.method!r}, which failed: {plugins.told(error)}"
        raise SettingsError("method", found, "one that can plan this task") from error
    if settings.release == "manual" and method.per_client:
        allowed = f'"auto" with {settings.method}, whose clients have state of their own that no release takes back'
        raise SettingsError("release", '"manual"', allowed)
    checks.need_phases(task, phases)
    if settings.dp is not None:
        need_private(task, phases)
    if settings.personal_evaluation:
        phases.append(_personal_evaluation(settings, phases[-1]))
    settled = settle(settings, phases, len(bundles[0].manifest.class_names))
    for phase in settled:
        fitting = [manifest for manifest in task.manifests if phase.takes(manifest)]
        for manifest in fitting:
            check(phase.plan, manifest, phase.name)
            if phase.model_rules:
                check(_model_plan(phase), manifest, phase.name)
        tables = [plans.tables(phase.plan, manifest) for manifest in fitting]
        if any(each != tables[0] for each in tables):
            raise Malformed(f"phase {phase.name!r}: bundles whose tables differ in name, type or shape")
    return method, tuple(settled), len(method.phases)


def task_of(row: Row[Any], bundles: tuple[TaskBundle, ...], *, method_modules: bool) -> Task:
    """A task from its row, without method state and rounds.

    Args:
        row: Of the table `tasks`.
        bundles: Of the task.
        method_modules: Import a method that is named as `module:NAME`.

    Raises:
        SettingsError: The method is named so, and must not be; and as `plan`.
        Malformed: As `plan`.
    """
    settings = task_settings.parse(row.settings)
    if plugins.is_module(settings.method) and not method_modules:
        allowed = "a name without a colon, or server.allow_method_modules = true in the server's config"
        raise SettingsError("method", f"{settings.method[:80]!r}", allowed)
    method, planned, method_phases = plan(settings, bundles)
    return _task(row, bundles, settings, method, planned, method_phases)


def suspended(row: Row[Any], bundles: tuple[TaskBundle, ...], fault: str) -> Task:
    """A task that cannot be planned, so that its method and phases are unknown; `fault` says why.

    Raises:
        SettingsError: Its settings cannot be read.
    """
    settings = task_settings.parse(row.settings)
    unknown = Phase(name="", rounds=settings.rounds + settings.personal_evaluation, cohort=None, plan=pb.LocalPlan())

    def refuse(*_: object) -> Any:
        raise Unavailable(f"task {row.name!r} cannot be used without its method: {fault}")

    method = Method(phases=(unknown,), begin=refuse, download=refuse, aggregate=refuse)
    return replace(_task(row, bundles, settings, method, (unknown,), 1), fault=fault)


def _task(
    row: Row[Any],
    bundles: tuple[TaskBundle, ...],
    settings: TaskSettings,
    method: Method,
    planned: tuple[Phase, ...],
    method_phases: int,
) -> Task:
    return Task(
        id=row.id,
        name=row.name,
        content=row.content,
        settings=settings,
        seed=row.seed,
        bundles=bundles,
        method=method,
        phases=planned,
        method_phases=method_phases,
        state=row.state,
        reason=row.reason,
        paused=row.paused,
        committed=row.committed,
        abandoned=row.abandoned,
        most_participations=row.most_participations,
        bounds=_bounds(row.bounds),
    )


def settle(settings: TaskSettings, phases: Sequence[Phase], classes: int) -> list[Phase]:
    """All phases of a task with the statistics that its settings ask for, and without exact ones beside noise.

    Args:
        settings: The task's.
        phases: As the method gives them, and one for personal evaluation where that is asked for.
        classes: The number of classes.

    Raises:
        SettingsError: A setting asks for what clients cannot send.
        Malformed: The method asks for exact statistics, which undo the noise of a label distribution.
    """
    if settings.dp is not None or any(plans.asks(phase.plan, "label_distribution") for phase in phases):
        settled = [_without_exact(settings, phase) for phase in phases]
    else:
        settled = [replace(phase, plan=_with_confusion(phase.plan, settings)) for phase in phases]
    most = max(1, *(len(phase.plan.evaluations) for phase in settled))  # an evaluator's is one
    if settings.confusion and most * classes**2 > MAX_CONFUSION_NUMBERS:
        raise SettingsError(
            "confusion",
            f"true with {classes} classes and {most} evaluations a round",
            f"false where there are more than {MAX_CONFUSION_NUMBERS} numbers to send",
        )
    return settled


def global_evaluation(settings: TaskSettings, phase: Phase) -> pb.LocalPlan:
    """The local plan of evaluators: evaluate the global model."""
    evaluated = local_plans.plan(
        assemble(GLOBAL, rule(source(download=GLOBAL))),
        evaluations=[evaluate(GLOBAL)],
        extractors=phase.plan.extractors,
    )
    return _with_confusion(evaluated, settings)


def check(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest, phase: str) -> None:
    """Check that every client with this bundle can carry out the local plan.

    Raises:
        Malformed: It cannot; the text says why.
    """
    try:
        plan_check.check(plan, manifest)
    except PlanRefused as error:
        raise Malformed(f"phase {phase!r}: {error}") from error


def _personal_evaluation(settings: TaskSettings, last: Phase) -> Phase:
    """The round in which all clients evaluate their models of the last phase, also fine-tuned if the settings say so.

    Raises:
        SettingsError: The last phase has no model.
    """
    if not last.model_rules:
        raise SettingsError("personal_evaluation", "true", f"false: clients have no model in phase {last.name!r}")
    evaluated = _model_plan(last)
    if settings.personal_fine_tuning:
        evaluated.validation_percent = last.plan.validation_percent
        evaluated.instructions.extend(tuning := fine_tuning(last.plan))
        evaluated.evaluations.extend(evaluate(each.value) for each in tuning[-1:])
    return replace(last, name=PERSONAL_EVALUATION, rounds=1, cohort=None, plan=evaluated, model=None, intake="")


def _model_plan(phase: Phase) -> pb.LocalPlan:
    """A plan that evaluates, untrained, the model that clients of this phase predict with."""
    return local_plans.plan(
        assemble(START, *phase.model_rules), evaluations=[evaluate(START)], extractors=phase.plan.extractors
    )


def fine_tuning(plan: pb.LocalPlan) -> list[pb.Instruction]:
    """The trainings that lead to the plan's last trained weights, from `start` on, and what they read beside it."""
    tuning = pb.LocalPlan()
    tuning.CopyFrom(plan)
    trainings = {each.value: each.train for each in tuning.instructions if each.HasField("train")}
    last = value = next(reversed(trainings), "")
    while value in trainings:
        value = trainings[value].start
    for each in [each for each in tuning.instructions if each.value in (START, value)]:
        tuning.instructions.remove(each)
    for each in tuning.instructions:
        if each.value == last:
            each.value = FINE_TUNED
        if each.HasField("train") and each.train.start == value:
            each.train.start = START
        for binding in (*each.train.bindings, *each.derive.bindings):
            if binding.source.value == value:
                binding.source.value = START
    for field in ("evaluations", "keeps", "uploads"):
        tuning.ClearField(field)
    if last:
        tuning.evaluations.append(evaluate(FINE_TUNED))
    _drop_unread(tuning)
    return list(tuning.instructions)


def _drop_unread(plan: pb.LocalPlan) -> None:
    """Remove the instructions that make what nothing reads."""
    while unread := [each for each in plan.instructions if each.value not in plans.still_read(plan, -1)]:
        for each in unread:
            plan.instructions.remove(each)


def _with_confusion(plan: pb.LocalPlan, settings: TaskSettings) -> pb.LocalPlan:
    """The plan with a confusion matrix for each of its evaluations, if the settings ask for it."""
    if not settings.confusion or not plan.evaluations or plans.asks(plan, "confusion"):
        return plan
    asking = pb.LocalPlan()
    asking.CopyFrom(plan)
    asking.statistics.append(local_plans.CONFUSION)
    return asking


def _without_exact(settings: TaskSettings, phase: Phase) -> Phase:
    """The phase without evaluations and what only they read."""
    if settings.personal_evaluation:
        raise SettingsError("personal_evaluation", "true", "false: the method asks for noisy label distributions")
    plan = pb.LocalPlan()
    plan.CopyFrom(phase.plan)
    exact = [name for name in ("class_counts", "confusion") if plans.asks(plan, name)]
    exact += [f"table {each.name!r}" for each in plan.uploads if plans.is_about_photos(plan, each.value)]
    if exact:
        raise Malformed(f"phase {phase.name!r} asks for {exact[0]} in a task with noisy label distributions")
    plan.ClearField("evaluations")
    _drop_unread(plan)
    return replace(phase, plan=plan, model=phase.model_rules)


def _bounds(text: str | None) -> tuple[int, Bounds] | None:
    if text is None:
        return None
    phase, *norms = json.loads(text)
    return phase, Bounds(*norms)
