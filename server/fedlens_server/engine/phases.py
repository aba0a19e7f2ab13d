"""The phases of a task: planned by its method, settled by its settings, and local plans that its bundles can run.

A task with noisy label distributions asks its trainers for nothing exact: no class counts, evaluations or confusion
matrices, from which the noise could be subtracted. Evaluators still measure the global model on their own photos.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from sqlalchemy import Row

from fedlens_proto.blob import FLOATS, Layout
from fedlens_proto.manifest import select, specs
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2
from fedlens_server.engine.view import Task, TaskBundle
from fedlens_server.errors import Malformed
from fedlens_server.methods import METHODS
from fedlens_server.planning import task_settings
from fedlens_server.planning.batch_norm import with_batch_norm
from fedlens_server.planning.method import Method, Phase, TaskPlan
from fedlens_server.planning.task_settings import SettingsError, TaskSettings

PERSONAL_EVALUATION = "personal-evaluation"
# Confusion matrices of numbers below 128 in a header of 64 KiB; larger numbers take the rest.
MAX_CONFUSION_NUMBERS = 48_000


def plan(settings: TaskSettings, bundles: tuple[TaskBundle, ...]) -> tuple[Method, tuple[Phase, ...], int]:
    """The method, all phases as clients get them, and the number of phases that are the method's own.

    Raises:
        SettingsError: There is no such method, or a setting does not fit it or the bundles.
        Malformed: A local plan does not fit the bundles, or would undo the noise of a label distribution.
    """
    make = METHODS.get(settings.method)
    if make is None:
        raise SettingsError("method", f"{settings.method[:80]!r}", f"one of {', '.join(sorted(METHODS))}")
    task = TaskPlan(settings=settings, manifests=tuple(bundle.manifest for bundle in bundles))
    if not task.ordinary:
        raise SettingsError("manifests", "only bundles that concatenate extractors", "an ordinary one at least")
    for manifest in task.ordinary:
        task_settings.check_hyper_values(settings, manifest)
    method = with_batch_norm(make, task)
    phases = list(method.phases)
    for phase in phases:
        fitting = [manifest for manifest in task.manifests if phase.takes(manifest)]
        if not fitting:
            allowed = f"one that concatenates extractors too, for phase {phase.name!r} of {settings.method}"
            raise SettingsError("manifests", "only ordinary bundles", allowed)
        for manifest in fitting:
            check(phase.local_plan, manifest, phase.name)
    if task.concatenated and not any(phase.concatenated for phase in phases):
        allowed = f"ordinary bundles: {settings.method} concatenates no extractors"
        raise SettingsError("manifests", "one that concatenates extractors", allowed)
    count = len(phases)
    if settings.personal_evaluation:
        last = phases[-1]
        local_plan = evaluation_only(last.local_plan, with_client_state=True)
        assert local_plan is not None  # client state may be used
        if settings.personal_fine_tuning:
            local_plan.evaluation.fine_tuning.extend(last.local_plan.stages)
            local_plan.references.extend(last.local_plan.references)
        phases.append(replace(last, name=PERSONAL_EVALUATION, rounds=1, cohort=None, local_plan=local_plan))
    classes = len(bundles[0].manifest.class_names)
    return method, tuple(settle(settings, phases, classes)), count


def task_of(row: Row[Any], bundles: tuple[TaskBundle, ...]) -> Task:
    """A task from its row, without method state and rounds. Errors as in `plan`."""
    settings = task_settings.parse(row.settings)
    method, planned, method_phases = plan(settings, bundles)
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
        committed=row.committed,
        abandoned=row.abandoned,
    )


def settle(settings: TaskSettings, phases: Sequence[Phase], classes: int) -> list[Phase]:
    """All phases of a task with the statistics that its settings ask for, and without the exact ones beside noisy ones.

    Args:
        settings: The task's.
        phases: As the method gives them, and one for personal evaluation where that is asked for.
        classes: The number of classes.

    Raises:
        SettingsError: A setting asks for what clients cannot send.
        Malformed: The method asks for exact statistics, which undo the noise of a label distribution.
    """
    if any(asks(phase.local_plan, "label_distribution") for phase in phases):
        settled = [_without_exact(settings, phase) for phase in phases]
    else:
        settled = [replace(phase, local_plan=with_confusion(phase.local_plan, settings)) for phase in phases]
    most = max(1, *(len(moments(phase.local_plan)) for phase in settled))  # an evaluator's is one
    if settings.confusion and most * classes**2 > MAX_CONFUSION_NUMBERS:
        raise SettingsError(
            "confusion",
            f"true with {classes} classes and {most} evaluations a round",
            f"false where there are more than {MAX_CONFUSION_NUMBERS} numbers to send",
        )
    return settled


def with_confusion(local_plan: assignment_pb2.LocalPlan, settings: TaskSettings) -> assignment_pb2.LocalPlan:
    """The plan with a confusion matrix for each of its evaluations, if the settings ask for it."""
    if not settings.confusion or not moments(local_plan) or asks(local_plan, "confusion"):
        return local_plan
    asking = assignment_pb2.LocalPlan()
    asking.CopyFrom(local_plan)
    asking.statistics.add().confusion.SetInParent()
    return asking


def asks(local_plan: assignment_pb2.LocalPlan, statistic: str) -> bool:
    """Tell whether the plan asks for a statistic."""
    return any(ask.WhichOneof("kind") == statistic for ask in local_plan.statistics)


def evaluation_only(
    local_plan: assignment_pb2.LocalPlan, *, with_client_state: bool
) -> assignment_pb2.LocalPlan | None:
    """A plan that evaluates, untrained, the model that this one starts from; None: it needs client state."""
    rules = []
    for rule in local_plan.start:
        if not with_client_state:
            if not rule.source.download:
                return None
            source = assignment_pb2.SetSource(download=rule.source.download)
            rule = assignment_pb2.StartRule(tensors=rule.tensors, source=source)
        rules.append(rule)
    return assignment_pb2.LocalPlan(
        start=rules, evaluation=assignment_pb2.EvaluationPlan(at_start=True), extractors=local_plan.extractors
    )


def upload_layout(local_plan: assignment_pb2.LocalPlan, manifest: manifest_pb2.Manifest) -> Layout | None:
    """The layout of a client's upload, exact but for the digest of its base; None: nothing is uploaded."""
    if not local_plan.HasField("upload"):
        return None
    chosen = select(manifest.tensors, local_plan.upload.tensors)
    base = bytes(32) if local_plan.upload.base_set else None
    return Layout.of(specs(chosen, FLOATS[local_plan.upload.codec]), base)


def moments(local_plan: assignment_pb2.LocalPlan) -> list[update_pb2.EvaluationMoment]:
    """The moments at which clients evaluate, ascending."""
    plan = local_plan.evaluation
    asked = (
        (plan.at_start, update_pb2.EVALUATION_MOMENT_START),
        (plan.at_end, update_pb2.EVALUATION_MOMENT_END),
        (bool(plan.fine_tuning), update_pb2.EVALUATION_MOMENT_FINE_TUNED),
    )
    return [moment for wanted, moment in asked if wanted]


def download_names(local_plan: assignment_pb2.LocalPlan) -> set[str]:
    """The downloaded sets that a client needs if it has no client state."""
    sources = [rule.source for rule in local_plan.start] + [binding.set for binding in local_plan.references]
    return {source.download for source in sources if source.download}


def base_sets(local_plan: assignment_pb2.LocalPlan, manifest: manifest_pb2.Manifest) -> Mapping[str, str]:
    """For each tensor the downloaded set that it starts from, unless it starts from client state alone."""
    found: dict[str, str] = {}
    for rule in local_plan.start:
        for tensor in select(manifest.tensors, rule.tensors):
            found.setdefault(tensor.name, rule.source.download)
    return {name: source for name, source in found.items() if source}


def check(local_plan: assignment_pb2.LocalPlan, manifest: manifest_pb2.Manifest, phase: str) -> None:
    """Check that every client with this bundle can execute the local plan.

    Raises:
        Malformed: It cannot, or the plan asks for something that this version does not support; the text says what.
    """

    def need(condition: bool, message: str) -> None:
        if not condition:
            raise Malformed(f"phase {phase!r}: {message}")

    covered = {tensor.name for rule in local_plan.start for tensor in select(manifest.tensors, rule.tensors)}
    missing = sorted({tensor.name for tensor in manifest.tensors} - covered)
    need(not missing, f"no start rule covers tensor {missing[:1]}")
    sources = [rule.source for rule in local_plan.start] + [b.set for b in local_plan.references if b.HasField("set")]
    need(
        all(source.kept or source.download for source in sources), "a source names neither a kept nor a downloaded set"
    )
    _check_references(local_plan, manifest, need)
    programs = {program.name for program in manifest.programs}
    known = {hyper.name: hyper for hyper in manifest.hyper_parameters}
    for stage in (*local_plan.stages, *local_plan.evaluation.fine_tuning):
        need(stage.program in programs, f"the bundle has no program {stage.program!r}; it has {sorted(programs)}")
        need(max(stage.epochs, stage.steps) > 0, f"a stage of {stage.program!r} has no length")
        for value in stage.hyper_values:
            hyper = known.get(value.name)
            need(hyper is not None, f"the bundle has no hyper-parameter {value.name!r}; it has {sorted(known)}")
            assert hyper is not None
            inside = hyper.minimum <= value.value <= hyper.maximum
            need(inside, f"{value.name} is {value.value:g}, allowed are {hyper.minimum:g} to {hyper.maximum:g}")
    for keep in local_plan.keep:
        need(bool(keep.set), "a kept set has no name")
        need(bool(select(manifest.tensors, keep.tensors)), f"kept set {keep.set!r} selects no tensor of the bundle")
    if local_plan.HasField("upload"):
        upload = local_plan.upload
        need(upload.codec in FLOATS, "the upload names no codec")
        need(bool(select(manifest.tensors, upload.tensors)), "the upload selects no tensor of the bundle")
        _check_base(local_plan, manifest, need)
    kinds = [ask.WhichOneof("kind") for ask in local_plan.statistics]
    need(None not in kinds, "a statistic has no kind")
    need(len(set(kinds)) == len(kinds), f"a statistic is asked for twice: {kinds}")
    for ask in local_plan.statistics:
        if ask.HasField("label_distribution"):
            epsilon = ask.label_distribution.epsilon
            need(isfinite(epsilon) and epsilon > 0, f"epsilon is {epsilon:g}, must be above 0 and finite")
    extractors = len(local_plan.extractors)
    takes = f"{manifest.concatenated} extractors side by side, the plan names {extractors}"
    need(extractors == manifest.concatenated, f"the bundle takes {takes}")


def _without_exact(settings: TaskSettings, phase: Phase) -> Phase:
    if settings.personal_evaluation:
        raise SettingsError("personal_evaluation", "true", "false: the method asks for noisy label distributions")
    for statistic in ("class_counts", "confusion"):
        if asks(phase.local_plan, statistic):
            raise Malformed(f"phase {phase.name!r} asks for {statistic} in a task with noisy label distributions")
    private = assignment_pb2.LocalPlan()
    private.CopyFrom(phase.local_plan)
    private.ClearField("evaluation")
    return replace(phase, local_plan=private)


def _check_base(
    local_plan: assignment_pb2.LocalPlan, manifest: manifest_pb2.Manifest, need: Callable[[bool, str], None]
) -> None:
    """Check that clients download the set to which they send differences, and that it holds what they send."""
    name = local_plan.upload.base_set
    if not name:
        return
    known = download_names(local_plan)
    need(name in known, f"differences to set {name!r} are uploaded, which the plan does not download ({sorted(known)})")
    held = {tensor for tensor, source in base_sets(local_plan, manifest).items() if source == name}
    bound = {binding.name for binding in local_plan.references if binding.set.download == name}
    for reference in manifest.references:
        if reference.name in bound:
            held.update(reference.tensors)
    sent = select(manifest.tensors, local_plan.upload.tensors)
    missing = [tensor.name for tensor in sent if tensor.name not in held]
    need(not missing, f"the difference of {missing[:1]} to set {name!r} is uploaded, which need not hold it")


def _check_references(
    local_plan: assignment_pb2.LocalPlan, manifest: manifest_pb2.Manifest, need: Callable[[bool, str], None]
) -> None:
    wanted = {reference.name: reference for reference in manifest.references}
    bound = {binding.name: binding for binding in local_plan.references}
    trains = bool(local_plan.stages or local_plan.evaluation.fine_tuning)
    missing = sorted(wanted.keys() - bound.keys()) if trains else []
    need(not missing, f"the bundle's step wants reference {missing[:1]}, which this method does not give")
    extra = sorted(bound.keys() - wanted.keys())
    need(not extra, f"the bundle's step has no reference {extra[:1]}; it has {sorted(wanted)}")
    for name, binding in bound.items():
        kind = binding.WhichOneof("source")
        need(kind is not None, f"reference {name!r} has no source")
        is_set = bool(wanted[name].tensors)
        need(is_set == (kind != "label_counts"), f"reference {name!r} cannot be bound to {kind}")
