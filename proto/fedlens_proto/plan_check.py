"""The check of a local plan against a bundle: whether a client can carry it out.

A server checks a plan when a task is made, a client when an assignment comes. The codes of the faults are equal in
every language.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite

from fedlens_proto.errors import ManifestError, PlanRefused
from fedlens_proto.layout import FLOATS, TensorSpec
from fedlens_proto.manifest import INITIAL, program, select, specs, takes_views
from fedlens_proto.plans import (
    FORMAT,
    MAX_TABLE_BYTES,
    PREDICT,
    Schema,
    Value,
    bound,
    downloads,
    made_by,
    only_optional,
    selected,
    still_read,
)
from fedlens_proto.slots import (
    LABEL_COUNTS,
    WEIGHTS,
    ProgramKind,
    batch_of,
    kind_of,
    makes_rows,
    references,
)
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import blob_pb2, manifest_pb2

MAX_INSTRUCTIONS = 32
MAX_RESULTS = 8
"""Most keeps, uploads or evaluations of a plan."""
MAX_VALIDATION_PERCENT = 50
_NAME = re.compile(r"[a-z0-9_.-]{1,64}")


def check(
    plan: pb.LocalPlan,
    manifest: manifest_pb2.Manifest,
    *,
    answer: pb.Answer = pb.ANSWER_UPDATE,
    sets: Collection[str] | None = None,
) -> None:
    """Check that a client with this bundle can carry out a plan.

    Args:
        plan: The plan.
        manifest: Of the client's bundle.
        answer: Of the assignment.
        sets: Names of the assignment's sets; None: not known yet.

    Raises:
        PlanRefused: It cannot; names the first fault.
    """
    _need(plan.format == FORMAT, "format", f"local plan of format {plan.format or 'unset'}; this version runs {FORMAT}")
    _check_sizes_and_names(plan)
    percent, most = plan.validation_percent, MAX_VALIDATION_PERCENT
    _need(percent <= most, "rows", f"{percent} % for validation; 1 to {most} are allowed")
    known: dict[str, Value] = {}
    for instruction in plan.instructions:
        _check_instruction(instruction, plan, manifest, known)
        known[instruction.value] = made_by(instruction, manifest)
    weights = sum(spec.nbytes for spec in specs(manifest.tensors))
    for name, value in known.items():
        size = value.nbytes
        _need(size <= max(MAX_TABLE_BYTES, weights), "size", f"value {name!r} of {size} bytes")
    _check_keeps(plan, manifest, known)
    for evaluation in plan.evaluations:
        what = f"evaluation {evaluation.label!r}"
        value = _value(evaluation.value, known, what)
        _need(value.makes == WEIGHTS, "evaluation", f"{what} of table {value.makes!r}; weights are evaluated")
        found = _program(evaluation.program or PREDICT, ProgramKind.PREDICT, manifest)
        _check_bindings(found, evaluation.bindings, manifest, known)
    _check_uploads(plan, manifest, known)  # reads the programs of all evaluations, too
    _check_statistics(plan)
    read = still_read(plan, -1)
    unused = [name for name in known if name not in read]
    _need(not unused, "unused", f"value {unused[:1]}, which nothing reads")
    _check_answer(plan, answer)
    count, room = len(plan.extractors), manifest.concatenated
    _need(count == room, "extractors", f"{count} extractors; the bundle takes {room} side by side")
    missing = sorted(downloads(plan, manifest) - {INITIAL, *sets}) if sets is not None else []
    _need(not missing, "missing-set", f"set {missing[:1]}, which is not among the assignment's")


def _check_sizes_and_names(plan: pb.LocalPlan) -> None:
    count = len(plan.instructions)
    _need(count <= MAX_INSTRUCTIONS, "size", f"{count} instructions; at most {MAX_INSTRUCTIONS} are allowed")
    for what, found in (
        ("keeps", len(plan.keeps)),
        ("uploads", len(plan.uploads)),
        ("evaluations", len(plan.evaluations)),
    ):
        _need(found <= MAX_RESULTS, "size", f"{found} {what}; at most {MAX_RESULTS} are allowed")
    named = {
        "value": [each.value for each in plan.instructions],
        "kept set": [each.state for each in plan.keeps],
        "upload": [each.name for each in plan.uploads],
        "evaluation": [each.label for each in plan.evaluations],
    }
    for what, names in named.items():
        for name in names:
            _check_name(what, name)
    for name in (*plan.extractors, *(upload.base for upload in plan.uploads if upload.base)):
        _check_name("set", name)
    for what, names in named.items():
        _check_once(what, names)


def _check_instruction(
    instruction: pb.Instruction, plan: pb.LocalPlan, manifest: manifest_pb2.Manifest, known: Mapping[str, Value]
) -> None:
    kind = instruction.WhichOneof("kind")
    if kind == "assemble":
        for rule in instruction.assemble.rules:
            _check_source(rule.source, known, "a rule")
            _need(rule.source.WhichOneof("other") != "label_counts", "source", "weights from label counts")
        for rule, tensors in selected(instruction.assemble.rules, manifest):
            value = known.get(rule.source.value)
            is_table = value is not None and value.makes != WEIGHTS
            _need(not is_table or not tensors, "schema", f"weights from table {rule.source.value!r}")
        covered = {spec.name for _, tensors in selected(instruction.assemble.rules, manifest) for spec in tensors}
        left = sorted({tensor.name for tensor in manifest.tensors} - covered)
        _need(not left, "uncovered", f"no rule selects tensor {left[:1]}")
    elif kind == "train":
        train = instruction.train
        found = _program(train.program, ProgramKind.TRAIN, manifest)
        start = _value(train.start, known, f"the start of {instruction.value!r}")
        _need(start.makes == WEIGHTS, "schema", f"a training that starts from table {start.makes!r}")
        _need(bool(train.epochs or train.steps), "length", f"training {instruction.value!r} has no length")
        _check_rows(found, train.rows, (pb.ROWS_TRAIN, pb.ROWS_PUBLIC), plan, manifest)
        _check_hyper(found, train.hyper_values, manifest)
        _check_bindings(found, train.bindings, manifest, known, trains=True)
    elif kind == "derive":
        derive = instruction.derive
        found = _program(derive.program, ProgramKind.DERIVE, manifest)
        over = (pb.ROWS_TRAIN, pb.ROWS_VALIDATION, pb.ROWS_PUBLIC)
        allowed = (pb.ROWS_PUBLIC,) if makes_rows(found) else over if batch_of(found) else (pb.ROWS_UNSPECIFIED,)
        _check_rows(found, derive.rows, allowed, plan, manifest)
        _check_hyper(found, derive.hyper_values, manifest)
        _check_bindings(found, derive.bindings, manifest, known)
    else:
        raise PlanRefused("program", f"instruction {instruction.value!r} of a kind that this version does not know")


def _check_rows(
    found: manifest_pb2.Program,
    rows: pb.Rows,
    allowed: Collection[pb.Rows],
    plan: pb.LocalPlan,
    manifest: manifest_pb2.Manifest,
) -> None:
    named = f"program {found.name!r} over {_listed(pb.Rows, [rows])}"
    _need(rows in allowed, "rows", f"{named}; allowed are {_listed(pb.Rows, allowed)}")
    if rows == pb.ROWS_PUBLIC:
        _need(manifest.HasField("public"), "rows", f"{named}: the bundle has no public rows")
        _need(not takes_views(found, manifest), "rows", f"{named}: it takes views, public rows have none")
    else:
        targets = any(slot.kind == manifest_pb2.SLOT_KIND_TARGET for slot in found.inputs)
        _need(not targets, "rows", f"{named}: it has targets, which only public rows have")
    is_set_apart = rows != pb.ROWS_VALIDATION or plan.validation_percent > 0
    _need(is_set_apart, "rows", f"{named}: the plan sets no photos apart for it")


def _check_hyper(found: manifest_pb2.Program, values: Iterable[pb.HyperValue], manifest: manifest_pb2.Manifest) -> None:
    values = list(values)
    _check_once("hyper-parameter", [value.name for value in values])
    slots = {slot.name for slot in found.inputs if slot.kind == manifest_pb2.SLOT_KIND_HYPER}
    ranges = {hyper.name: hyper for hyper in manifest.hyper_parameters}
    for value in values:
        name = value.name
        _need(name in slots, "hyper", f"program {found.name!r} has no hyper-parameter {name!r}; it has {sorted(slots)}")
        least, most = ranges[name].minimum, ranges[name].maximum
        _need(least <= value.value <= most, "range", f"{name} is {value.value:g}, allowed are {least:g} to {most:g}")


def _check_bindings(
    found: manifest_pb2.Program,
    bindings: Sequence[pb.Binding],
    manifest: manifest_pb2.Manifest,
    known: Mapping[str, Value],
    *,
    trains: bool = False,
) -> None:
    wanted = references(found)
    _check_once("binding", [binding.reference for binding in bindings])
    for binding in bindings:
        name = binding.reference
        _need(name in wanted, "reference", f"program {found.name!r} has no reference {name!r}; it has {sorted(wanted)}")
        _check_source(binding.source, known, f"reference {name!r}")
        counts = binding.source.WhichOneof("other") == LABEL_COUNTS
        _need(trains or not counts, "source", f"reference {name!r}: label counts go to programs that train")
    unbound = sorted(wanted.keys() - set(found.optional) - {binding.reference for binding in bindings})
    _need(not unbound, "unbound", f"program {found.name!r} needs reference {unbound[:1]}")
    for use in bound(found, bindings, manifest):
        schema = _schema(use.source, manifest, known)
        if schema is None:
            continue
        for spec in use.tensors:
            has = schema.get(spec.name, "no such tensor")
            what = repr(use.source.value or use.source.download or LABEL_COUNTS)
            _need(has == spec, "schema", f"program {found.name!r} needs {spec}; {what} has {has}")


def _check_source(source: pb.Source, known: Mapping[str, Value], where: str) -> None:
    other = source.WhichOneof("other")
    _need(bool(source.state or other), "source", f"{where} has no source")
    if source.state:
        _check_name("client state", source.state)
    if other == "download":
        _check_name("set", source.download)
    if other == LABEL_COUNTS:
        _need(source.label_counts, "source", f"{where}: label_counts must be true")
    if other == "value":
        _value(source.value, known, where)


def _check_keeps(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest, known: Mapping[str, Value]) -> None:
    for keep in plan.keeps:
        what = f"kept set {keep.state!r}"
        _check_selector(_value(keep.value, known, what), keep.HasField("tensors"), keep.tensors, manifest, what)


def _check_uploads(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest, known: Mapping[str, Value]) -> None:
    total = 0
    for upload in plan.uploads:
        what = f"upload {upload.name!r}"
        value = _value(upload.value, known, what)
        _check_selector(value, upload.HasField("tensors"), upload.tensors, manifest, what)
        is_table = value.makes != WEIGHTS
        _need(is_table or not value.is_derived, "upload", f"{what} of weights that were derived; only tables may be")
        allowed = (pb.CODEC_FLOAT32,) if is_table else tuple(FLOATS)
        found = _listed(pb.Codec, [upload.codec])
        _need(upload.codec in allowed, "codec", f"{what} has {found}; allowed are {_listed(pb.Codec, allowed)}")
        if is_table:
            total += value.nbytes
            _need(not upload.base, "base", f"{what}: differences are for weights, not for tables")
        elif upload.base:
            _need(
                upload.base not in only_optional(plan, manifest), "base", f"{what}: set {upload.base!r} may be missing"
            )
    _need(total <= MAX_TABLE_BYTES, "size", f"tables of {total} bytes are uploaded; allowed are {MAX_TABLE_BYTES}")


def _check_selector(
    value: Value, is_set: bool, selector: pb.TensorSelector, manifest: manifest_pb2.Manifest, what: str
) -> None:
    if value.makes != WEIGHTS:
        _need(not is_set, "selector", f"{what} selects tensors of a table, which is taken whole")
    else:
        _need(bool(select(manifest.tensors, selector)), "selector", f"{what} selects no tensor")


def _check_statistics(plan: pb.LocalPlan) -> None:
    kinds = [statistic.WhichOneof("kind") for statistic in plan.statistics]
    _need(None not in kinds, "statistic", "a statistic of no kind")
    _check_once("statistic", [str(kind) for kind in kinds])
    for statistic in plan.statistics:
        epsilon = statistic.label_distribution.epsilon
        usable = not statistic.HasField("label_distribution") or is_usable(epsilon)
        _need(usable, "statistic", f"a label distribution with epsilon {epsilon:g}; it must be above 0 and finite")


def is_usable(epsilon: float) -> bool:
    """Tell whether epsilon is above 0 and noise of scale 1/epsilon is finite."""
    return isfinite(epsilon) and epsilon > 0 and isfinite(1000 / epsilon)


def _check_answer(plan: pb.LocalPlan, answer: pb.Answer) -> None:
    _need(answer in (pb.ANSWER_UPDATE, pb.ANSWER_EVALUATION), "answer", f"an answer of kind {answer}")
    if answer == pb.ANSWER_EVALUATION:
        asked = {statistic.WhichOneof("kind") for statistic in plan.statistics} - {"confusion"}
        more = plan.keeps or plan.uploads or asked
        _need(not more, "answer", "an evaluation that keeps, uploads or counts something")


def _schema(source: pb.Source, manifest: manifest_pb2.Manifest, known: Mapping[str, Value]) -> Schema | None:
    """The tensors that a source is known to have; None: downloads and client state have no schema."""
    other = source.WhichOneof("other")
    if other == "value":
        return known[source.value].schema
    if other == LABEL_COUNTS:
        spec = TensorSpec(LABEL_COUNTS, blob_pb2.DTYPE_FLOAT32, (len(manifest.class_names),))
        return {LABEL_COUNTS: spec}
    if other == "download" and source.download == INITIAL:
        return {spec.name: spec for spec in specs(manifest.tensors)}
    return None


def _program(name: str, kind: ProgramKind, manifest: manifest_pb2.Manifest) -> manifest_pb2.Program:
    try:
        found = program(manifest, name)
    except ManifestError as error:
        raise PlanRefused("program", str(error)) from error
    _need(kind_of(found) == kind, "program", f"program {name!r} cannot {kind}")
    return found


def _value(name: str, known: Mapping[str, Value], where: str) -> Value:
    _need(name in known, "value", f"{where}: value {name!r} is not made before; there are {sorted(known)}")
    return known[name]


def _listed(kind: type[pb.Rows] | type[pb.Codec], values: Iterable[int]) -> str:
    """The names of these values of an enumeration; the number of one that this version does not know."""
    return ", ".join(kind.Name(each) if each in kind.values() else str(each) for each in sorted(values))


def _check_name(what: str, name: str) -> None:
    allowed = _NAME.fullmatch(name) is not None
    _need(allowed, "name", f"{what} {name[:80]!r}: a name has 1 to 64 of a to z, 0 to 9, '_', '-' and '.'")


def _check_once(what: str, names: Iterable[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    _need(not repeated, "duplicate", f"{what} {repeated[:1]} occurs twice")


def _need(condition: bool, code: str, text: str) -> None:
    if not condition:
        raise PlanRefused(code, f"not supported: {text}")
