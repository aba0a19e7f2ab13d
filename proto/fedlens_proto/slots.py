"""Programs of a manifest by what they do, and the checks of their slots.

kind      inputs                                                           outputs
trains    weights, optimiser, counters, rows, hyper, references, uniforms  the same weights, optimiser, counters;
loss and logits
derives   hyper, references; rows and accumulators, or no rows             the same accumulators, or results, or
weights (without rows)
predicts  weights, input, mask, references                                 logits
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from fedlens_proto.errors import ManifestError
from fedlens_proto.layout import TensorSpec
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

WEIGHTS = "weights"
"""What a program makes, and the schema of a value, that is no table: every exchangeable tensor."""
LABEL_COUNTS = "label_counts"
"""The tensor of a reference that is bound to the client's number of photos of each class."""
_Need = Callable[[bool, str], None]
_ROWS = {pb.SLOT_KIND_INPUT, pb.SLOT_KIND_LABEL, pb.SLOT_KIND_MASK, pb.SLOT_KIND_TARGET, pb.SLOT_KIND_UNIFORM}
_REFERENCE = {pb.SLOT_KIND_REFERENCE, pb.SLOT_KIND_TARGET}
_CARRIED = {pb.SLOT_KIND_WEIGHT, pb.SLOT_KIND_OPTIMISER, pb.SLOT_KIND_COUNTER}


class ProgramKind(StrEnum):
    """What a program does."""

    TRAIN = "train"
    DERIVE = "derive"
    PREDICT = "predict"
    OTHER = "other"  # `embed`, `view` and `extract`, which plans do not name


_INPUTS: Mapping[ProgramKind, set[pb.SlotKind]] = {
    ProgramKind.TRAIN: {*_CARRIED, *_ROWS, pb.SLOT_KIND_HYPER, pb.SLOT_KIND_REFERENCE, pb.SLOT_KIND_PRESENT},
    ProgramKind.DERIVE: {
        *(_ROWS - {pb.SLOT_KIND_UNIFORM}),
        *(pb.SLOT_KIND_HYPER, pb.SLOT_KIND_REFERENCE, pb.SLOT_KIND_PRESENT, pb.SLOT_KIND_ACCUMULATOR),
    },
    ProgramKind.PREDICT: {
        *(pb.SLOT_KIND_WEIGHT, pb.SLOT_KIND_INPUT, pb.SLOT_KIND_MASK, pb.SLOT_KIND_REFERENCE, pb.SLOT_KIND_PRESENT)
    },
}
_OUTPUTS: Mapping[ProgramKind, set[pb.SlotKind]] = {
    ProgramKind.TRAIN: {*_CARRIED, pb.SLOT_KIND_LOSS, pb.SLOT_KIND_LOGITS},
    ProgramKind.DERIVE: {pb.SLOT_KIND_ACCUMULATOR, pb.SLOT_KIND_RESULT, pb.SLOT_KIND_WEIGHT},
    ProgramKind.PREDICT: {pb.SLOT_KIND_LOGITS},
}


def kind_of(program: pb.Program) -> ProgramKind:
    """What a program does, by its outputs."""
    if program.makes:
        return ProgramKind.DERIVE
    kinds = {slot.kind for slot in program.outputs}
    if pb.SLOT_KIND_WEIGHT in kinds:
        return ProgramKind.TRAIN
    return ProgramKind.PREDICT if kinds == {pb.SLOT_KIND_LOGITS} else ProgramKind.OTHER


def input_of(program: pb.Program) -> pb.Slot | None:
    """The slot of the program's rows; None: it takes no rows."""
    return next((slot for slot in program.inputs if slot.kind == pb.SLOT_KIND_INPUT), None)


def batch_of(program: pb.Program) -> int:
    """The rows of one run; 0: the program takes no rows."""
    found = input_of(program)
    return 0 if found is None else int(found.shape[0])


def makes_rows(program: pb.Program) -> bool:
    """True if a program gives a result for each row, over public rows."""
    return bool(batch_of(program)) and any(slot.kind == pb.SLOT_KIND_RESULT for slot in program.outputs)


def references(program: pb.Program) -> dict[str, list[pb.Slot]]:
    """The program's inputs of kind `SLOT_KIND_REFERENCE` and `SLOT_KIND_TARGET`, by name of the reference."""
    found: dict[str, list[pb.Slot]] = defaultdict(list)
    for slot in program.inputs:
        if slot.kind in _REFERENCE:
            found[slot.name.partition("/")[0]].append(slot)
    return dict(found)


def tensor_of(slot: pb.Slot) -> str:
    """The name of the tensor of a reference's slot."""
    return slot.name.partition("/")[2]


def spec_of(slot: pb.Slot, name: str, rows: int | None = None) -> TensorSpec:
    """The tensor that a slot takes or gives; `rows` replaces the first dimension."""
    shape = tuple(slot.shape) if rows is None else (rows, *slot.shape[1:])
    return TensorSpec(name, slot.dtype, shape)


def check_programs(manifest: pb.Manifest) -> None:
    """Check the slots of every program that local plans can name.

    Raises:
        ManifestError: A program lacks a slot, has one too many, or one that does not fit the manifest.
    """
    weights: Counter[object] = Counter((WEIGHTS, t.name, t.dtype, tuple(t.shape)) for t in manifest.tensors)
    tables: dict[str, list[str]] = {}
    for program in manifest.programs:
        kind = kind_of(program)
        if kind == ProgramKind.OTHER:
            continue

        def need(condition: bool, message: str, name: str = program.name) -> None:
            if not condition:
                raise ManifestError(f"program {name!r} {message}")

        for slots, known, side in ((program.inputs, _INPUTS, "takes"), (program.outputs, _OUTPUTS, "gives")):
            for slot in slots:
                called = pb.SlotKind.Name(slot.kind) if slot.kind in pb.SlotKind.values() else str(slot.kind)
                need(slot.kind in known[kind], f"{side} a slot of kind {called}, which one that {kind}s cannot")
            repeated = [key for key, count in Counter((s.kind, s.name) for s in slots).items() if count > 1]
            need(not repeated, f"{side} slot {repeated[:1]} twice")
        _check_rows(program, manifest, need)
        _check_references(program, need)
        given, taken = _slots(program.outputs, _CARRIED), _slots(program.inputs, _CARRIED)
        if kind == ProgramKind.TRAIN:
            need(given == taken, "does not give every weight, moment and counter that it takes")
            need(_named(program.outputs) == weights, "does not train exactly the exchangeable tensors")
            need(bool(batch_of(program)), "trains without rows")
            ends = [slot.kind for slot in program.outputs if slot.kind not in _CARRIED]
            need(ends == [pb.SLOT_KIND_LOSS, pb.SLOT_KIND_LOGITS], "must give loss and logits last")
            need(bool(program.objective), "names no objective")
        if kind == ProgramKind.PREDICT:
            need(_named(program.inputs) == weights, "does not take exactly the exchangeable tensors")
            need(bool(batch_of(program)), "predicts without rows")
            need(program.name != "predict" or not references(program), "takes references; only others may")
        if kind == ProgramKind.DERIVE:
            _check_derive(program, weights, need)
            schema = sorted(str(spec_of(slot, slot.name)) for slot in program.outputs)
            need(tables.setdefault(program.makes, schema) == schema, f"makes another {program.makes!r} than others do")


def _check_rows(program: pb.Program, manifest: pb.Manifest, need: _Need) -> None:
    found = input_of(program)
    if found is None:
        bad = [slot for slot in program.inputs if slot.kind in _ROWS]
        need(not bad, "takes labels, masks, targets or uniforms, but no input")
        return
    need(bool(found.shape) and found.shape[0] > 0, f"has an input of shape {list(found.shape)}")
    batch = found.shape[0]
    for slot in program.inputs:
        if slot.kind in _ROWS:
            need(list(slot.shape[:1]) == [batch], f"has slot {slot.name!r} of other than {batch} rows")
        if slot.kind in (pb.SLOT_KIND_LABEL, pb.SLOT_KIND_MASK):
            dtype = blob_pb2.DTYPE_INT64 if slot.kind == pb.SLOT_KIND_LABEL else blob_pb2.DTYPE_FLOAT32
            need(slot.dtype == dtype and len(slot.shape) == 1, "has a label or mask of another type or shape")
    own = kind_of(program) != ProgramKind.DERIVE and program.name in ("step", "predict")
    need(not own or batch == manifest.batch, f"has batch {batch}, the manifest {manifest.batch}")


def _check_references(program: pb.Program, need: _Need) -> None:
    known = references(program)
    need(all(tensor_of(slot) for slots in known.values() for slot in slots), "has a reference without a tensor's name")
    unknown = sorted(set(program.optional) - known.keys())
    need(not unknown, f"names {unknown[:1]} as optional, which is no reference of it")
    need(len(set(program.optional)) == len(program.optional), "names an optional reference twice")
    present = {slot.name for slot in program.inputs if slot.kind == pb.SLOT_KIND_PRESENT}
    need(present <= set(program.optional), "takes the presence of a reference that is not optional")


def _check_derive(program: pb.Program, weights: Counter[object], need: _Need) -> None:
    kinds = {slot.kind for slot in program.outputs}
    need(len(kinds) == 1, "gives outputs of more than one kind")
    has_rows = bool(batch_of(program))
    carried = {pb.SLOT_KIND_ACCUMULATOR}
    need(_slots(program.inputs, carried) == _slots(program.outputs, carried), "does not hand on its accumulators")
    need(kinds != carried or has_rows, "accumulates without rows")
    need((program.makes == WEIGHTS) == (kinds == {pb.SLOT_KIND_WEIGHT}), f"makes {program.makes!r}, not what it gives")
    if program.makes == WEIGHTS:
        need(_named(program.outputs) == weights, "does not make exactly the exchangeable tensors")
        need(not has_rows, "makes weights from rows")
    if makes_rows(program):
        batch = batch_of(program)
        need(all(list(s.shape[:1]) == [batch] for s in program.outputs), "does not give a result for each row")


def _slots(slots: Iterable[pb.Slot], kinds: set[pb.SlotKind]) -> Counter[object]:
    return Counter((s.kind, s.name, s.dtype, tuple(s.shape)) for s in slots if s.kind in kinds)


def _named(slots: Iterable[pb.Slot]) -> Counter[object]:
    return Counter((WEIGHTS, s.name, s.dtype, tuple(s.shape)) for s in slots if s.kind == pb.SLOT_KIND_WEIGHT)
