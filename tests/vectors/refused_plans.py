"""Plans and manifests with one fault each, made from sound ones."""

import base64
from collections.abc import Callable
from typing import Any

from fedlens_proto import manifest as manifests
from fedlens_proto import plan_check
from fedlens_proto.errors import PlanRefused
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import blob_pb2, manifest_pb2
from tests.vectors.forms import encoded, message, refusal

Change = Callable[[pb.LocalPlan], object]


def plans(manifest: manifest_pb2.Manifest) -> list[dict[str, Any]]:
    """Each refused plan with its code, and the assignment's answer and sets."""
    return [
        *(_refused(manifest, name, change) for name, change in _faults().items()),
        _refused(manifest, "no answer", lambda plan: None, answer=pb.ANSWER_UNSPECIFIED),
        _refused(manifest, "an evaluation that uploads", lambda plan: None, answer=pb.ANSWER_EVALUATION),
        _refused(manifest, "a set that the assignment lacks", lambda plan: None, sets=["other", "teacher"]),
    ]


def _refused(
    manifest: manifest_pb2.Manifest,
    name: str,
    change: Change,
    answer: pb.Answer = pb.ANSWER_UPDATE,
    sets: list[str] | None = None,
) -> dict[str, Any]:
    plan = sound()
    change(plan)
    listed = ["centre-0", "global", "means", "other", "teacher"] if sets is None else sets
    try:
        plan_check.check(plan, manifest, answer=answer, sets=listed)
    except PlanRefused as error:
        return {
            "name": name,
            "code": error.code,
            "manifest": "masked",
            "answer": pb.Answer.Name(answer),
            "sets": listed,
            "plan": message(plan),
        }
    raise AssertionError(f"{name}: the plan is accepted")


def sound() -> pb.LocalPlan:
    """A plan with every kind of instruction: the base of all faults."""
    from tests.vectors.plans import assemble, derive, plan, source, train, upload

    return plan(
        assemble("start"),
        train("towards", program="distil", rows=pb.ROWS_PUBLIC, bindings=[_binding("teacher", "teacher")]),
        train(start="towards", bindings=[_binding("global", "other")]),
        derive("sums", "sums", pb.ROWS_VALIDATION, model=source(value="trained")),
        derive("means", "mean", sums=source(value="sums"), previous=source("means", state="means")),
        derive("mixed", "mix", candidate_0=source("global"), candidate_1=source(value="trained")),
        keeps=[pb.Keep(state="means", value="means"), pb.Keep(state="mixed", value="mixed")],
        uploads=[upload(base="global"), upload("means", "means")],
        evaluations=[
            pb.Evaluation(label="start", value="start"),
            pb.Evaluation(
                label="nearest",
                value="trained",
                program="nearest",
                bindings=[pb.Binding(reference="means", source=source(value="means"))],
            ),
        ],
        statistics=[pb.Statistic(class_counts=pb.ClassCounts())],
        validation_percent=20,
    )


def _binding(reference: str, download: str) -> pb.Binding:
    return pb.Binding(reference=reference, source=pb.Source(download=download))


def _faults() -> dict[str, Change]:
    """A change for each fault; instructions of the sound plan: start, towards, trained, sums, means, mixed."""
    start, towards, trained, sums, means, mixed = range(6)

    def repeat(plan: pb.LocalPlan, index: int, count: int, name: str) -> None:
        for number in range(count):
            plan.instructions.add().CopyFrom(plan.instructions[index])
            plan.instructions[-1].value = f"{name}-{number}"

    def thirty_three(plan: pb.LocalPlan) -> None:
        repeat(plan, start, 27, "more")
        for number in range(27):
            binding = plan.instructions[mixed].derive.bindings[0]
            binding.source.value = f"more-{number}"

    def without_rows(plan: pb.LocalPlan) -> None:
        del plan.instructions[start + 1 :], plan.keeps[:], plan.uploads[:], plan.evaluations[1:]
        plan.validation_percent = 99

    return {
        "a later format": lambda p: setattr(p, "format", 2),
        "no format": lambda p: p.ClearField("format"),
        "33 instructions": thirty_three,
        "nine evaluations": lambda p: [p.evaluations.add(label=f"more-{i}", value="start") for i in range(7)],
        "an upper-case name": lambda p: setattr(p.keeps[1], "state", "Mixed"),
        "a value without a name": lambda p: p.instructions.add().assemble.CopyFrom(p.instructions[start].assemble),
        "a label of 65 letters": lambda p: setattr(p.evaluations[0], "label", "a" * 65),
        "a value made twice": lambda p: setattr(p.instructions[mixed], "value", "means"),
        "a state kept twice": lambda p: setattr(p.keeps[1], "state", "means"),
        "an upload named twice": lambda p: setattr(p.uploads[1], "name", "weights"),
        "a label twice": lambda p: setattr(p.evaluations[1], "label", "start"),
        "a reference bound twice": lambda p: p.instructions[trained].train.bindings.append(_binding("global", "other")),
        "a statistic twice": lambda p: p.statistics.append(p.statistics[0]),
        "a hyper-parameter twice": lambda p: [
            p.instructions[trained].train.hyper_values.add(name="lr", value=0.5) for _ in range(2)
        ],
        "a program that is not there": lambda p: setattr(p.instructions[sums].derive, "program", "total"),
        "a derive on a program that trains": lambda p: setattr(p.instructions[sums].derive, "program", "step"),
        "a training with a program that derives": lambda p: setattr(p.instructions[trained].train, "program", "sums"),
        "an evaluation with a program that trains": lambda p: setattr(p.evaluations[0], "program", "step"),
        # the sound plan uploads a difference, whose check reads the programs and bindings of all evaluations
        "an evaluation with a program that is not there": lambda p: setattr(p.evaluations[1], "program", "total"),
        "a reference that the program of an evaluation lacks": lambda p: setattr(
            p.evaluations[1].bindings[0], "reference", "previous"
        ),
        "an instruction of no kind": lambda p: p.instructions[start].ClearField("assemble"),
        "a value used before it is made": lambda p: setattr(p.instructions[towards].train, "start", "trained"),
        "a value that nothing makes": lambda p: setattr(p.keeps[0], "value", "medians"),
        "an upload of nothing": lambda p: setattr(p.uploads[0], "value", ""),
        "a training from a table": lambda p: p.instructions.add(
            value="late", train=pb.Train(program="step", start="means", epochs=1, rows=pb.ROWS_TRAIN)
        ),
        "a table without the tensor of a reference": lambda p: setattr(
            p.instructions[means].derive.bindings[0].source, "value", "trained"
        ),
        "a table in place of weights": lambda p: (
            setattr(p.instructions[sums].derive.bindings[0].source, "value", "start")
            or setattr(p.instructions[mixed].derive.bindings[1].source, "value", "means")
        ),
        "initial weights in place of a table": lambda p: (
            p.instructions[towards].train.bindings[0].CopyFrom(_binding("teacher", "initial"))
        ),
        "weights assembled from a table": lambda p: p.instructions.add(
            value="late", assemble=pb.Assemble(rules=[pb.Rule(source=pb.Source(value="means"))])
        ),
        "a selector for a table": lambda p: p.keeps[0].tensors.names.append("mean"),
        "an upload that selects nothing": lambda p: p.uploads[0].tensors.names.append("fc.gain"),
        "a tensor that no rule selects": lambda p: (
            p.instructions[start].assemble.rules[0].tensors.names.append("fc.bias")
        ),
        "a reference that is not bound": lambda p: p.instructions[sums].derive.ClearField("bindings"),
        "a reference of an evaluation that is not bound": lambda p: p.evaluations[1].ClearField("bindings"),
        "a reference that the program lacks": lambda p: setattr(
            p.instructions[trained].train.bindings[0], "reference", "previous"
        ),
        "a binding without a source": lambda p: p.instructions[trained].train.bindings[0].ClearField("source"),
        "label counts for a program that derives": lambda p: setattr(
            p.instructions[sums].derive.bindings[0].source, "label_counts", True
        ),
        "weights assembled from label counts": lambda p: setattr(
            p.instructions[start].assemble.rules[0].source, "label_counts", True
        ),
        "label counts that are false": lambda p: setattr(
            p.instructions[trained].train.bindings[0].source, "label_counts", False
        ),
        "a hyper-parameter of another program": lambda p: p.instructions[towards].train.hyper_values.add(
            name="mu", value=1
        ),
        "a hyper-parameter above its greatest value": lambda p: p.instructions[trained].train.hyper_values.add(
            name="mu", value=10.5
        ),
        "a training without length": lambda p: p.instructions[trained].train.ClearField("epochs"),
        "a training of no steps": lambda p: setattr(p.instructions[trained].train, "steps", 0),
        "a training without rows": lambda p: setattr(p.instructions[trained].train, "rows", pb.ROWS_UNSPECIFIED),
        "a training on validation photos": lambda p: setattr(p.instructions[trained].train, "rows", pb.ROWS_VALIDATION),
        "rows for a program that takes none": lambda p: setattr(p.instructions[means].derive, "rows", pb.ROWS_TRAIN),
        "no rows for a program that takes them": lambda p: setattr(
            p.instructions[sums].derive, "rows", pb.ROWS_UNSPECIFIED
        ),
        "targets of train photos": lambda p: setattr(p.instructions[towards].train, "rows", pb.ROWS_TRAIN),
        "validation photos that are not set apart": lambda p: p.ClearField("validation_percent"),
        "51 percent for validation": lambda p: setattr(p, "validation_percent", 51),
        "99 percent for validation, without a program that takes rows": without_rows,
        "a value that nothing reads": lambda p: p.instructions.add(
            value="late", assemble=p.instructions[start].assemble
        ),
        "an upload of derived weights": lambda p: setattr(p.uploads[0], "value", "mixed"),
        "no codec": lambda p: p.uploads[0].ClearField("codec"),
        "a table as float16": lambda p: setattr(p.uploads[1], "codec", pb.CODEC_FLOAT16),
        "a table as a difference": lambda p: setattr(p.uploads[1], "base", "means"),
        "a difference to a set that may be absent": lambda p: setattr(p.uploads[0], "base", "other"),
        "an evaluation of a table": lambda p: setattr(p.evaluations[0], "value", "means"),
        "a statistic of no kind": lambda p: p.statistics.add(),
        "noise of epsilon 0": lambda p: p.statistics.add(label_distribution=pb.LabelDistribution()),
        "extractors for an ordinary bundle": lambda p: p.extractors.append("cluster-0"),
    }


def _manifest_faults() -> dict[str, Callable[[manifest_pb2.Manifest], object]]:
    """A change for each fault of a manifest's programs."""

    def program(manifest: manifest_pb2.Manifest, name: str) -> manifest_pb2.Program:
        return manifests.program(manifest, name)

    def drop(slots: Any, index: int) -> None:
        del slots[index]

    return {
        "a training that does not give every weight": lambda m: drop(program(m, "step").outputs, 0),
        "a training without an objective": lambda m: program(m, "step").ClearField("objective"),
        "a training without logits": lambda m: drop(program(m, "step").outputs, -1),
        "a predict program that takes a reference": lambda m: program(m, "predict").inputs.append(
            program(m, "nearest").inputs[-1]
        ),
        "an accumulator that is not handed on": lambda m: drop(program(m, "sums").inputs, -3),
        "outputs of two kinds": lambda m: program(m, "sums").outputs.append(program(m, "mean").outputs[0]),
        "weights from a table's name": lambda m: setattr(program(m, "mix"), "makes", "mixture"),
        "two programs that make another table of one name": lambda m: setattr(program(m, "mean"), "makes", "sums"),
        "an optional reference that is not there": lambda m: program(m, "step").optional.append("other"),
        "the presence of a reference that is not optional": lambda m: program(m, "step").ClearField("optional"),
        "a slot twice": lambda m: program(m, "mean").inputs.append(program(m, "mean").inputs[0]),
        "a mask of other rows": lambda m: program(m, "sums").inputs[2].shape.__setitem__(0, 4),
        "uniforms of a program that derives": lambda m: program(m, "sums").inputs.append(
            manifest_pb2.Slot(kind=manifest_pb2.SLOT_KIND_UNIFORM, name="u", dtype=blob_pb2.DTYPE_FLOAT32, shape=[3, 1])
        ),
        "public rows that are not among the parts": lambda m: setattr(m.public, "sha256", bytes(32)),
        "no public rows": lambda m: setattr(m.public, "rows", 0),
        "a hyper-parameter that the manifest lacks": lambda m: drop(m.hyper_parameters, 2),
        "step of another batch": lambda m: setattr(m, "batch", 5),
        "65 languages": lambda m: m.display_names.extend(
            _shown(f"a{chr(97 + i // 26)}{chr(97 + i % 26)}", "Katze", "Hund") for i in range(65)
        ),
        "a language twice": lambda m: m.display_names.extend([_shown("de", "Katze", "Hund")] * 2),
        "languages that are not sorted": lambda m: m.display_names.extend(
            [_shown("fr", "chat", "chien"), _shown("de", "Katze", "Hund")]
        ),
        **{
            f"{tag!r} as a language": lambda m, tag=tag: m.display_names.append(_shown(tag, "Katze", "Hund"))
            for tag in ("", "d", "DE", "de_AT", "de-at", "de-", "de\n", "deutsch", "x-pirate", "zh-hant")
        },
        "a display name too few": lambda m: m.display_names.append(_shown("de", "Katze")),
        "a display name too many": lambda m: m.display_names.append(_shown("de", "Katze", "Hund", "Emu")),
        "two classes of one display name": lambda m: m.display_names.append(_shown("de", "Tier", "Tier")),
        "an empty display name": lambda m: m.display_names.append(_shown("de", "Katze", "")),
        "a display name of two lines": lambda m: m.display_names.append(_shown("de", "Katze", "Hund\n")),
        "a display name that deletes": lambda m: m.display_names.append(_shown("de", "Katze", "Hund\x7f")),
        "a display name that turns its direction": lambda m: m.display_names.append(
            _shown("de", "Katze", "Hund\u202e")
        ),
        "a display name of 201 bytes": lambda m: m.display_names.append(_shown("de", "Katze", "ß" * 100 + "s")),
    }


def _shown(language: str, *names: str) -> manifest_pb2.DisplayNames:
    return manifest_pb2.DisplayNames(language=language, names=names)


def refused_manifests(manifest: manifest_pb2.Manifest) -> list[dict[str, Any]]:
    """Each refused manifest with the reason."""
    found = []
    for name, change in _manifest_faults().items():
        changed = manifest_pb2.Manifest()
        changed.CopyFrom(manifest)
        change(changed)
        reason = refusal(manifests.parse, changed.SerializeToString())
        found.append({"name": name, "reason": reason, "manifest": base64.b64encode(encoded(changed)).decode()})
    return found
