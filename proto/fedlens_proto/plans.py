"""Local plans for a bundle: what they read, what their values hold, and what they upload."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fedlens_proto.layout import DTYPES, FLOATS, Layout, TensorSpec
from fedlens_proto.manifest import program, select, specs
from fedlens_proto.slots import (
    WEIGHTS,
    makes_rows,
    references,
    spec_of,
    tensor_of,
)
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2

FORMAT = 1
MAX_TABLE_BYTES = 64 << 20
"""Largest table, unless the bundle's weights are larger; also the most bytes of uploaded tables."""
PREDICT = "predict"
STATE = "state/"
"""Before the name of a set of client state, in `consents`."""

Schema = Mapping[str, TensorSpec]


@dataclass(frozen=True)
class Value:
    """What an instruction makes.

    Attributes:
        makes: `weights`, or the name of a table.
        is_derived: Whether a `derive` made it.
        schema: Its tensors by name, floats as float32.
    """

    makes: str
    is_derived: bool
    schema: Schema

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(spec.nbytes for spec in self.schema.values())


@dataclass(frozen=True)
class Use:
    """A use of a source.

    Attributes:
        source: Where the tensors come from.
        tensors: What it must have.
        is_optional: Whether the plan goes on without it.
    """

    source: pb.Source
    tensors: tuple[TensorSpec, ...]
    is_optional: bool = False


def made(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest) -> dict[str, Value]:
    """What each instruction of a checked plan makes, by the name of the value."""
    return {instruction.value: made_by(instruction, manifest) for instruction in plan.instructions}


def uses(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest) -> list[Use]:
    """The uses of sources in a checked plan, in its order."""
    found: list[Use] = []
    for instruction in plan.instructions:
        found += instruction_uses(instruction, manifest)
    for evaluation in plan.evaluations:
        found += bound(program(manifest, evaluation.program or PREDICT), evaluation.bindings, manifest)
    return found


def instruction_uses(instruction: pb.Instruction, manifest: manifest_pb2.Manifest) -> list[Use]:
    """The uses of sources in one instruction, without the weights that a training starts from."""
    match instruction.WhichOneof("kind"):
        case "assemble":
            return [
                Use(rule.source, tuple(tensors)) for rule, tensors in selected(instruction.assemble.rules, manifest)
            ]
        case "train":
            return bound(program(manifest, instruction.train.program), instruction.train.bindings, manifest)
        case _:
            return bound(program(manifest, instruction.derive.program), instruction.derive.bindings, manifest)


def still_read(plan: pb.LocalPlan, index: int) -> set[str]:
    """Names of the values that something after instruction `index` reads; -1: anything."""
    found: set[str] = set()
    for instruction in plan.instructions[index + 1 :]:
        train, derive = instruction.train, instruction.derive
        found.update(rule.source.value for rule in instruction.assemble.rules)
        found.add(train.start)
        for bindings in (train.bindings, derive.bindings):
            found.update(binding.source.value for binding in bindings)
    for evaluation in plan.evaluations:
        found.add(evaluation.value)
        found.update(binding.source.value for binding in evaluation.bindings)
    found.update(keep.value for keep in plan.keeps)
    found.update(upload.value for upload in plan.uploads)
    return found - {""}


def programs(plan: pb.LocalPlan) -> set[str]:
    """Names of the programs that a plan runs, as far as it names them."""
    named = {name for each in plan.instructions for name in (each.train.program, each.derive.program)}
    return (named | {evaluation.program for evaluation in plan.evaluations}) - {""}


def reads_rows(plan: pb.LocalPlan, rows: pb.Rows) -> bool:
    """True if an instruction runs over these rows."""
    return any(rows in (each.train.rows, each.derive.rows) for each in plan.instructions)


def steps(train: pb.Train, num_examples: int, batch: int) -> int:
    """The number of steps of a training on so many rows."""
    return train.steps if train.HasField("steps") else train.epochs * -(-num_examples // batch)


def asks(plan: pb.LocalPlan, statistic: str) -> bool:
    """True if a plan asks for a statistic, such as `confusion`."""
    return any(each.WhichOneof("kind") == statistic for each in plan.statistics)


def counts_photos(plan: pb.LocalPlan) -> bool:
    """True if an update says how many photos its client has: it has trained on them, or tells of their labels."""
    of_labels = asks(plan, "class_counts") or asks(plan, "label_distribution")
    return of_labels or any(each.train.rows == pb.ROWS_TRAIN for each in plan.instructions)


def downloads(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest) -> set[str]:
    """Names of the sets that a client without state cannot do without."""
    return (_read_by(uses(plan, manifest)) | {upload.base for upload in plan.uploads}) - {""}


def only_optional(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest) -> set[str]:
    """Names of the sets that a plan reads but can do without."""
    found = uses(plan, manifest)
    return {use.source.download for use in found} - _read_by(found)


def all_downloads(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest) -> set[str]:
    """Names of the sets that a client may read, optional ones and extractors too."""
    read = {use.source.download for use in uses(plan, manifest) if use.tensors}
    return (read | {*plan.extractors, *(upload.base for upload in plan.uploads)}) - {""}


def _read_by(found: Iterable[Use]) -> set[str]:
    """Names of the downloads of the uses that are not optional."""
    return {use.source.download for use in found if not use.is_optional and use.tensors}


def start_rules(plan: pb.LocalPlan) -> Sequence[pb.Rule]:
    """The rules by which the first weights are assembled; empty if there are none."""
    return next((each.assemble.rules for each in plan.instructions if each.HasField("assemble")), [])


def starts(plan: pb.LocalPlan, upload: pb.Upload, manifest: manifest_pb2.Manifest) -> dict[str, str]:
    """For each uploaded tensor the download that its training started from, unless client state may be part of it."""
    by_value = {instruction.value: instruction for instruction in plan.instructions}
    name = upload.value
    while by_value[name].HasField("train"):
        name = by_value[name].train.start
    chosen = {tensor.name for tensor in select(manifest.tensors, upload.tensors)}
    return {
        spec.name: rule.source.download
        for rule, tensors in selected(by_value[name].assemble.rules, manifest)
        for spec in tensors
        if rule.source.download and not rule.source.state and spec.name in chosen
    }


def upload_layout(plan: pb.LocalPlan, upload: pb.Upload, manifest: manifest_pb2.Manifest) -> Layout:
    """The layout of an uploaded blob, exact but for the digest of its base."""
    value = made(plan, manifest)[upload.value]
    if value.makes != WEIGHTS:
        return Layout.of(value.schema.values())
    chosen = select(manifest.tensors, upload.tensors)
    return Layout.of(specs(chosen, FLOATS[upload.codec]), bytes(32) if upload.base else None)


def tables(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest) -> dict[str, Value]:
    """The tables that a plan uploads, by name of the upload."""
    known = made(plan, manifest)
    found = {upload.name: known[upload.value] for upload in plan.uploads}
    return {name: value for name, value in found.items() if value.makes != WEIGHTS}


def consents(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest) -> set[str]:
    """Names of what a plan uploads that a client's owner has to allow by name.

    These are tables, by what they are, and sets of the client's state, as `state/NAME`, from which uploaded weights are
    assembled or trained, or towards which a training may pull them: with enough weight on a reference, what it makes is
    the reference.
    """
    by_value = {instruction.value: instruction for instruction in plan.instructions}

    def states(name: str, tensors: set[str]) -> set[str]:
        """The sets of client state from which these tensors of weights come."""
        instruction = by_value[name]
        if instruction.HasField("train"):
            start = pb.Source(value=instruction.train.start)
            found = [(source, tensors) for source in (start, *(each.source for each in instruction.train.bindings))]
        elif instruction.HasField("derive"):
            found = [(each.source, tensors) for each in instruction.derive.bindings]
        else:
            rules = selected(instruction.assemble.rules, manifest)
            found = [(rule.source, tensors & {spec.name for spec in specs}) for rule, specs in rules]
        own = {source.state for source, among in found if source.state and among}
        others = (states(source.value, among) for source, among in found if source.value and among)
        return own.union(*others)

    sent_tables = tables(plan, manifest)
    asked = {table.makes for table in sent_tables.values()}
    for upload in plan.uploads:
        if upload.name not in sent_tables:
            chosen = {tensor.name for tensor in select(manifest.tensors, upload.tensors)}
            asked |= {f"{STATE}{name}" for name in states(upload.value, chosen)}
    return asked


def is_about_photos(plan: pb.LocalPlan, value: str) -> bool:
    """True if a value comes from a `derive` over the client's photos or labels, or over what it has kept of them."""
    by_value = {instruction.value: instruction for instruction in plan.instructions}
    derive = by_value[value].derive
    if not by_value[value].HasField("derive"):
        return False
    if derive.rows in (pb.ROWS_TRAIN, pb.ROWS_VALIDATION):
        return True
    sources = [binding.source for binding in derive.bindings]
    return any(
        source.state or source.label_counts or (source.value and is_about_photos(plan, source.value))
        for source in sources
    )


def memory(plan: pb.LocalPlan, manifest: manifest_pb2.Manifest) -> int:
    """Bytes of the values that are still read and of the slots of the running program, at most at any time."""
    sizes = {name: value.nbytes for name, value in made(plan, manifest).items()}
    live: set[str] = set()
    peaks: list[int] = []
    for index, instruction in enumerate(plan.instructions):
        live.add(instruction.value)
        running = instruction.train.program or instruction.derive.program
        slots = _slot_bytes(program(manifest, running)) if running else 0
        peaks.append(sum(sizes[name] for name in live) + slots)
        live &= still_read(plan, index)
    predicting = {each.program or PREDICT for each in plan.evaluations}
    slots = max((_slot_bytes(program(manifest, name)) for name in predicting), default=0)
    peaks.append(sum(sizes[name] for name in live) + slots)
    return max(peaks)


def made_by(instruction: pb.Instruction, manifest: manifest_pb2.Manifest) -> Value:
    """What a checked instruction makes."""
    if not instruction.HasField("derive"):
        return Value(WEIGHTS, False, {spec.name: spec for spec in specs(manifest.tensors)})
    found = program(manifest, instruction.derive.program)
    rows = manifest.public.rows if makes_rows(found) else None
    return Value(found.makes, True, {slot.name: spec_of(slot, slot.name, rows) for slot in found.outputs})


def selected(rules: Iterable[pb.Rule], manifest: manifest_pb2.Manifest) -> Iterator[tuple[pb.Rule, list[TensorSpec]]]:
    """Each rule with the tensors that no earlier rule selects."""
    taken: set[str] = set()
    for rule in rules:
        found = specs(select(manifest.tensors, rule.tensors))
        yield rule, [spec for spec in found if spec.name not in taken]
        taken.update(spec.name for spec in found)


def bound(found: manifest_pb2.Program, bindings: Iterable[pb.Binding], manifest: manifest_pb2.Manifest) -> list[Use]:
    """The uses of sources in these bindings of a program."""
    wanted, optional = references(found), set(found.optional)
    return [
        Use(
            binding.source,
            tuple(spec_of(slot, tensor_of(slot), _target_rows(slot, manifest)) for slot in wanted[binding.reference]),
            binding.reference in optional,
        )
        for binding in bindings
    ]


def _slot_bytes(found: manifest_pb2.Program) -> int:
    held = [slot for slot in (*found.inputs, *found.outputs) if slot.kind != manifest_pb2.SLOT_KIND_FROZEN]
    return sum(prod(slot.shape) * DTYPES[slot.dtype].itemsize for slot in held)


def _target_rows(slot: manifest_pb2.Slot, manifest: manifest_pb2.Manifest) -> int | None:
    return manifest.public.rows if slot.kind == manifest_pb2.SLOT_KIND_TARGET else None
