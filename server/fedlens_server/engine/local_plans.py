"""Local planes as data: whether a bundle can run one, and what a client's update then looks like."""

from collections.abc import Callable, Mapping
from math import isfinite

from fedlens_proto.blob import FLOATS, Layout
from fedlens_proto.manifest import select, specs
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2
from fedlens_server.errors import Malformed


def check(local_plan: assignment_pb2.LocalPlan, manifest: manifest_pb2.Manifest, phase: str) -> None:
    """See that every client with this bundle can execute the pass.

    Raises:
        Malformed: It cannot, or the pass asks for something that this version does not support; the text says what.
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
    questions = [ask.WhichOneof("kind") for ask in local_plan.statistics]
    need(None not in questions, "an ask names no question")
    need(len(set(questions)) == len(questions), f"a question is asked twice: {questions}")
    for ask in local_plan.statistics:
        if ask.HasField("label_distribution"):
            epsilon = ask.label_distribution.epsilon
            need(isfinite(epsilon) and epsilon > 0, f"epsilon is {epsilon:g}, must be above 0 and finite")
    extractors = len(local_plan.extractors)
    takes = f"{manifest.concatenated} extractors side by side, the pass names {extractors}"
    need(extractors == manifest.concatenated, f"the bundle takes {takes}")


def upload_layout(local_plan: assignment_pb2.LocalPlan, manifest: manifest_pb2.Manifest) -> Layout | None:
    """The layout of a client's upload, exact but for the digest of its base; None: nothing is uploaded."""
    if not local_plan.HasField("upload"):
        return None
    chosen = select(manifest.tensors, local_plan.upload.tensors)
    base = bytes(32) if local_plan.upload.base_set else None
    return Layout.of(specs(chosen, FLOATS[local_plan.upload.codec]), base)


def moments(local_plan: assignment_pb2.LocalPlan) -> list[update_pb2.EvaluationMoment]:
    """When clients evaluate, ascending."""
    plan = local_plan.evaluation
    asked = (
        (plan.at_start, update_pb2.EVALUATION_MOMENT_START),
        (plan.at_end, update_pb2.EVALUATION_MOMENT_END),
        (bool(plan.fine_tuning), update_pb2.EVALUATION_MOMENT_FINE_TUNED),
    )
    return [moment for wanted, moment in asked if wanted]


def download_names(local_plan: assignment_pb2.LocalPlan) -> set[str]:
    """The downloaded sets that a client needs, one whose kept sets may be missing."""
    sources = [rule.source for rule in local_plan.start] + [binding.set for binding in local_plan.references]
    return {source.download for source in sources if source.download}


def base_sets(local_plan: assignment_pb2.LocalPlan, manifest: manifest_pb2.Manifest) -> Mapping[str, str]:
    """For each tensor the downloaded set that it starts from; those that start from a kept set alone are left out."""
    found: dict[str, str] = {}
    for rule in local_plan.start:
        for tensor in select(manifest.tensors, rule.tensors):
            found.setdefault(tensor.name, rule.source.download)
    return {name: source for name, source in found.items() if source}


def evaluation_only(local_plan: assignment_pb2.LocalPlan, *, with_kept: bool) -> assignment_pb2.LocalPlan | None:
    """A pass that evaluates what this one starts from, untrained; None: without kept sets there is no such thing."""
    rules = []
    for rule in local_plan.start:
        if not with_kept:
            if not rule.source.download:
                return None
            source = assignment_pb2.SetSource(download=rule.source.download)
            rule = assignment_pb2.StartRule(tensors=rule.tensors, source=source)
        rules.append(rule)
    return assignment_pb2.LocalPlan(
        start=rules, evaluation=assignment_pb2.EvaluationPlan(at_start=True), extractors=local_plan.extractors
    )


def _check_base(
    local_plan: assignment_pb2.LocalPlan, manifest: manifest_pb2.Manifest, need: Callable[[bool, str], None]
) -> None:
    """See that the set to which differences are sent is downloaded and known to hold what is sent."""
    name = local_plan.upload.base_set
    if not name:
        return
    known = download_names(local_plan)
    need(name in known, f"differences to set {name!r} are uploaded, which the pass does not download ({sorted(known)})")
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
