"""The legality of local plans: one fault and one code each, and plans that must pass."""

from collections.abc import Callable
from hashlib import sha256
from math import inf, nan
from typing import Any

import pytest

from fedlens_proto import plan_check
from fedlens_proto.errors import PlanRefused
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2
from tests.vectors.plan_arithmetic import manifest_of
from tests.vectors.plans import assemble, derive, plan, source, train, upload
from tests.vectors.refused_plans import sound

START, TOWARDS, TRAINED, SUMS, MEANS, MIXED = range(6)
"""Instructions of the sound plan."""
SETS = ("centre-0", "global", "means", "other", "teacher")
_Change = Callable[[pb.LocalPlan], object]


def _manifest() -> manifest_pb2.Manifest:
    return manifest_of(manifest_pb2.LAST_BATCH_MASKED, sha256(b"public").digest(), 6)


def _code(changed: pb.LocalPlan, manifest: manifest_pb2.Manifest | None = None, **given: Any) -> str:
    with pytest.raises(PlanRefused) as refused:
        plan_check.check(changed, manifest or _manifest(), **given)
    return refused.value.code


def _train(changed: pb.LocalPlan) -> pb.Train:
    return changed.instructions[TRAINED].train


def _bind(reference: str, given: pb.Source) -> pb.Binding:
    return pb.Binding(reference=reference, source=given)


def _late(**kind: Any) -> _Change:
    """Append an instruction `late` and an evaluation that reads it."""

    def change(changed: pb.LocalPlan) -> None:
        changed.instructions.add(value="late", **kind)
        changed.evaluations.add(label="late", value="late")

    return change


def _chain(count: int) -> _Change:
    """Append trainings of which each starts from the one before; the last is evaluated."""

    def change(changed: pb.LocalPlan) -> None:
        for number in range(count):
            start = changed.instructions[-1].value if number else "trained"
            changed.instructions.append(train(f"more-{number}", start))
        changed.evaluations.add(label="last", value=f"more-{count - 1}")

    return change


def _set(at: Callable[[pb.LocalPlan], Any], **fields: Any) -> _Change:
    def change(changed: pb.LocalPlan) -> None:
        for name, value in fields.items():
            setattr(at(changed), name, value)

    return change


_FAULTS: list[tuple[str, str, _Change]] = [
    ("format", "unset", lambda p: p.ClearField("format")),
    ("format", "later", _set(lambda p: p, format=2)),
    ("size", "33 instructions", _chain(27)),
    ("size", "9 keeps", lambda p: [p.keeps.add(state=f"k-{i}", value="trained") for i in range(7)]),
    ("size", "9 uploads", lambda p: p.uploads.extend(upload(name=f"u-{i}") for i in range(7))),
    ("size", "9 evaluations", lambda p: [p.evaluations.add(label=f"e-{i}", value="start") for i in range(7)]),
    ("name", "upper case", _set(lambda p: p.keeps[0], state="Means")),
    ("name", "65 letters", _set(lambda p: p.evaluations[0], label="a" * 65)),
    ("name", "empty upload", _set(lambda p: p.uploads[0], name="")),
    ("name", "line end", _set(lambda p: p.uploads[0], name="weights\n")),
    ("name", "slash in a download", _set(lambda p: _train(p).bindings[0].source, download="a/b")),
    ("name", "space in a state", _set(lambda p: _train(p).bindings[0].source, state="a b")),
    ("duplicate", "value", _set(lambda p: p.instructions[MIXED], value="means")),
    ("duplicate", "state", _set(lambda p: p.keeps[1], state="means")),
    ("duplicate", "upload", _set(lambda p: p.uploads[1], name="weights")),
    ("duplicate", "label", _set(lambda p: p.evaluations[1], label="start")),
    ("duplicate", "binding", lambda p: _train(p).bindings.append(_bind("global", source("other")))),
    ("duplicate", "hyper-value", lambda p: [_train(p).hyper_values.add(name="lr", value=0.5) for _ in range(2)]),
    ("duplicate", "statistic", lambda p: p.statistics.append(p.statistics[0])),
    ("program", "absent", _set(lambda p: p.instructions[SUMS].derive, program="total")),
    ("program", "trains, for derive", _set(lambda p: p.instructions[SUMS].derive, program="step")),
    ("program", "derives, for train", _set(_train, program="sums")),
    ("program", "predicts, for train", _set(_train, program="predict")),
    ("program", "trains, for an evaluation", _set(lambda p: p.evaluations[0], program="step")),
    ("program", "absent, for an evaluation", _set(lambda p: p.evaluations[1], program="total")),
    ("program", "embeds, for an evaluation", _set(lambda p: p.evaluations[0], program="embed")),
    ("program", "no kind", lambda p: p.instructions[START].ClearField("assemble")),
    ("value", "start made later", _set(lambda p: p.instructions[TOWARDS].train, start="trained")),
    ("value", "own start", _set(_train, start="trained")),
    ("value", "of a binding", lambda p: _train(p).bindings[0].CopyFrom(_bind("global", source(value="mixed")))),
    ("value", "of a rule", _late(assemble=pb.Assemble(rules=[pb.Rule(source=source(value="none"))]))),
    ("value", "kept", _set(lambda p: p.keeps[0], value="medians")),
    ("value", "uploaded", _set(lambda p: p.uploads[0], value="")),
    ("value", "evaluated", _set(lambda p: p.evaluations[0], value="medians")),
    ("schema", "start is a table", _late(train=train(start="means").train)),
    ("schema", "table for weights", _set(lambda p: p.instructions[MIXED].derive.bindings[1].source, value="means")),
    ("schema", "weights for a table", _set(lambda p: p.instructions[MEANS].derive.bindings[0].source, value="start")),
    ("schema", "another table", _set(lambda p: p.evaluations[1].bindings[0].source, value="sums")),
    ("schema", "initial for a table", _set(lambda p: p.evaluations[1].bindings[0].source, download="initial")),
    ("schema", "assembled from a table", _late(assemble=assemble("", pb.Rule(source=source(value="means"))).assemble)),
    ("schema", "counts for weights", _set(lambda p: _train(p).bindings[0].source, label_counts=True)),
    ("selector", "of a kept table", lambda p: p.keeps[0].tensors.names.append("mean")),
    ("selector", "set but empty, of a table", lambda p: p.uploads[1].tensors.SetInParent()),
    ("selector", "upload of nothing", lambda p: p.uploads[0].tensors.names.append("fc.gain")),
    ("selector", "keep of nothing", lambda p: p.keeps[1].tensors.kinds.append(manifest_pb2.TENSOR_KIND_CONV)),
    ("uncovered", "one", lambda p: p.instructions[START].assemble.rules[0].tensors.names.append("fc.bias")),
    ("uncovered", "all", lambda p: p.instructions[START].assemble.ClearField("rules")),
    ("unbound", "of a derive", lambda p: p.instructions[SUMS].derive.ClearField("bindings")),
    ("unbound", "of a training", lambda p: p.instructions[TOWARDS].train.ClearField("bindings")),
    ("unbound", "of an evaluation", lambda p: p.evaluations[1].ClearField("bindings")),
    ("reference", "of another program", _set(lambda p: _train(p).bindings[0], reference="teacher")),
    ("reference", "of predict", lambda p: p.evaluations[0].bindings.append(_bind("means", source("means")))),
    ("source", "none, of a binding", lambda p: _train(p).bindings[0].ClearField("source")),
    ("source", "none, of a rule", lambda p: p.instructions[START].assemble.rules[0].ClearField("source")),
    ("source", "false counts", _set(lambda p: _train(p).bindings[0].source, label_counts=False)),
    ("source", "counts, derive", _set(lambda p: p.instructions[SUMS].derive.bindings[0].source, label_counts=True)),
    ("source", "counts, predict", _set(lambda p: p.evaluations[1].bindings[0].source, label_counts=True)),
    ("source", "counts, rule", _set(lambda p: p.instructions[START].assemble.rules[0].source, label_counts=True)),
    ("hyper", "of another program", lambda p: p.instructions[TOWARDS].train.hyper_values.add(name="mu")),
    ("hyper", "of no program", lambda p: p.instructions[MEANS].derive.hyper_values.add(name="alpha")),
    ("range", "too large", lambda p: _train(p).hyper_values.add(name="mu", value=10.5)),
    ("range", "too small", lambda p: _train(p).hyper_values.add(name="mu", value=-0.5)),
    ("range", "not a number", lambda p: _train(p).hyper_values.add(name="mu", value=nan)),
    ("length", "unset", lambda p: _train(p).ClearField("epochs")),
    ("length", "no steps", _set(_train, steps=0)),
    ("rows", "training without", _set(_train, rows=pb.ROWS_UNSPECIFIED)),
    ("rows", "training on validation", _set(_train, rows=pb.ROWS_VALIDATION)),
    ("rows", "derive takes none", _set(lambda p: p.instructions[MEANS].derive, rows=pb.ROWS_TRAIN)),
    ("rows", "derive takes some", _set(lambda p: p.instructions[SUMS].derive, rows=pb.ROWS_UNSPECIFIED)),
    ("rows", "targets of train photos", _set(lambda p: p.instructions[TOWARDS].train, rows=pb.ROWS_TRAIN)),
    ("rows", "not set apart", lambda p: p.ClearField("validation_percent")),
    ("rows", "51 percent", _set(lambda p: p, validation_percent=51)),
    ("rows", "51 percent, nothing takes rows", lambda p: p.CopyFrom(plan(assemble("start"), validation_percent=51))),
    ("unused", "weights", lambda p: p.instructions.append(assemble("late"))),
    ("unused", "read by itself alone", lambda p: p.instructions.append(train("late", "trained"))),
    ("upload", "derived weights", _set(lambda p: p.uploads[0], value="mixed")),
    ("codec", "unset", lambda p: p.uploads[0].ClearField("codec")),
    ("codec", "table as float16", _set(lambda p: p.uploads[1], codec=pb.CODEC_FLOAT16)),
    ("base", "of a table", _set(lambda p: p.uploads[1], base="means")),
    ("base", "optional", _set(lambda p: p.uploads[0], base="other")),
    ("evaluation", "of a table", _set(lambda p: p.evaluations[0], value="means")),
    ("statistic", "no kind", lambda p: p.statistics.add()),
    *(
        ("statistic", f"epsilon {e}", lambda p, e=e: p.statistics.add(label_distribution={"epsilon": e}))
        for e in (0.0, -1.0, nan, inf, 1e-307)
    ),
    ("extractors", "too many", lambda p: p.extractors.append("cluster-0")),
]


@pytest.mark.parametrize(("code", "change"), [pytest.param(c, f, id=f"{c}: {name}") for c, name, f in _FAULTS])
def test_a_plan_with_one_fault_is_refused_with_its_code(code: str, change: _Change) -> None:
    changed = sound()
    change(changed)
    assert _code(changed, sets=SETS) == code


def test_the_plan_without_a_fault_passes() -> None:
    plan_check.check(sound(), _manifest(), sets=SETS)


def test_as_many_instructions_and_evaluations_as_are_allowed_pass() -> None:
    # 6 + 26 = 32 instructions; 2 + 1 + 5 = 8 evaluations
    changed = sound()
    _chain(26)(changed)
    for number in range(5):
        changed.evaluations.add(label=f"more-{number}", value="start")
    plan_check.check(changed, _manifest(), sets=SETS)


def test_an_answer_must_be_known_and_an_evaluation_sends_nothing_else() -> None:
    evaluated = plan(assemble("start"), uploads=[], statistics=[pb.Statistic(confusion=pb.Confusion())])
    plan_check.check(evaluated, _manifest(), answer=pb.ANSWER_EVALUATION)
    assert _code(evaluated, answer=pb.ANSWER_UNSPECIFIED) == "answer"
    additions: list[_Change] = [
        lambda p: p.uploads.append(upload("start")),
        lambda p: p.keeps.add(state="model", value="start"),
        lambda p: p.statistics.add(class_counts=pb.ClassCounts()),
        lambda p: p.statistics.add(label_distribution=pb.LabelDistribution(epsilon=1)),
    ]
    for change in additions:
        changed = pb.LocalPlan.FromString(evaluated.SerializeToString())
        change(changed)
        plan_check.check(changed, _manifest())
        assert _code(changed, answer=pb.ANSWER_EVALUATION) == "answer"


@pytest.mark.parametrize("needed", ["global", "teacher"])
def test_a_needed_set_must_be_among_those_of_the_assignment(needed: str) -> None:
    assert _code(sound(), sets=set(SETS) - {needed}) == "missing-set"


def test_sets_of_optional_references_and_the_initial_weights_need_not_be_listed() -> None:
    # `other` is bound to the optional reference `global` alone; `means` only stands in for state of an optional one
    changed = sound()
    changed.instructions[MIXED].derive.bindings[0].source.download = "initial"
    plan_check.check(changed, _manifest(), sets=["global", "teacher"])


def test_a_base_is_needed_even_if_nothing_else_reads_it() -> None:
    changed = sound()
    changed.uploads[0].base = "centre-0"
    plan_check.check(changed, _manifest(), sets=SETS)
    assert _code(changed, sets=set(SETS) - {"centre-0"}) == "missing-set"


def test_a_bundle_without_public_rows_runs_no_plan_over_them() -> None:
    manifest = _manifest()
    manifest.ClearField("public")
    assert _code(sound(), manifest) == "rows"


def test_results_for_each_row_are_made_over_public_rows_alone() -> None:
    def scores(rows: pb.Rows) -> pb.LocalPlan:
        made = derive("scores", "scores", rows, model=source(value="start"))
        uploads = [upload("scores", "scores")]
        return plan(assemble("start"), made, uploads=uploads, validation_percent=20)

    plan_check.check(scores(pb.ROWS_PUBLIC), _manifest())
    for rows in (pb.ROWS_TRAIN, pb.ROWS_VALIDATION, pb.ROWS_UNSPECIFIED):
        assert _code(scores(rows)) == "rows"


@pytest.mark.parametrize(("rows", "allowed"), [(1 << 24, True), ((1 << 24) + 1, False)])
def test_a_table_may_have_64_mebibytes(rows: int, allowed: bool) -> None:
    # a float32 for each public row: 2**24 * 4 bytes = 64 MiB
    manifest = _manifest()
    manifest.public.rows = rows
    made = derive("scores", "scores", pb.ROWS_PUBLIC, model=source(value="start"))
    found = plan(assemble("start"), made, uploads=[upload("scores", "scores")])
    assert allowed or _code(found, manifest) == "size"
    if allowed:
        plan_check.check(found, manifest)


def test_uploaded_tables_may_have_64_mebibytes_in_all() -> None:
    manifest = _manifest()
    manifest.public.rows = (1 << 23) + 1  # each table: a little over 32 MiB
    both = [derive(name, "scores", pb.ROWS_PUBLIC, model=source(value="start")) for name in ("one", "two")]
    kept = plan(assemble("start"), *both, uploads=[upload("one", "one")], keeps=[pb.Keep(state="two", value="two")])
    plan_check.check(kept, manifest)
    sent = plan(assemble("start"), *both, uploads=[upload("one", "one"), upload("two", "two")])
    assert _code(sent, manifest) == "size"


@pytest.mark.parametrize(
    "legal",
    [
        pytest.param(pb.LocalPlan(format=1), id="nothing but num_examples"),
        pytest.param(plan(assemble("start"), validation_percent=50), id="50 percent, nothing takes rows"),
        pytest.param(
            plan(
                assemble("start", pb.Rule(source=source("initial", state="model"))),
                train(bindings=[_bind("global", source(value="start"))]),
                uploads=[],
                keeps=[pb.Keep(state="model", value="trained")],
            ),
            id="state with a stand-in",
        ),
        pytest.param(
            plan(
                assemble("start"),
                train(program="noisy", steps=3, bindings=[_bind("counts", pb.Source(label_counts=True))]),
            ),
            id="label counts and uniforms",
        ),
        pytest.param(plan(assemble("start"), train(rows=pb.ROWS_PUBLIC)), id="training on public rows"),
        pytest.param(
            plan(
                assemble("start"),
                derive("blend", "mix", candidate_0=source(value="start"), candidate_1=source(state="model")),
                train(start="blend"),
            ),
            id="training from derived weights",
        ),
    ],
)
def test_a_legal_plan_passes(legal: pb.LocalPlan) -> None:
    plan_check.check(legal, _manifest())
