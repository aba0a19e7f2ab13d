"""A trained model as one program from photos to logits, which runs without FedLens.

It takes any number of photos if the bundle's programs can be rewritten so; otherwise, and on phones, one.
"""

import io
import json
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.func import functional_call

from fedlens_export.errors import NotExportable, ParityBroken
from fedlens_export.programs import lowering, onnx_program, parity, pte_program
from fedlens_export.programs.composed import Composed, Trained
from fedlens_export.programs.steps import Arguments, ProgramSource, float_slot, frozen_tensors, slots_of
from fedlens_proto.v1 import manifest_pb2 as pb

FORMS = (".pt2", ".onnx", ".pte")
"""Endings of the files: a program of `torch.export`, ONNX, a program of ExecuTorch."""

METADATA_FILE = "fedlens.json"
"""Name of the metadata among the `extra_files` of a program of `torch.export`."""

_NAME = "whole model"


@dataclass(frozen=True)
class WholeModel:
    """The content of a file.

    Attributes:
        raw: Its bytes.
        metadata: Facts about photos and classes that a caller needs, by key. The file holds them too, except for a
            `.pte`, which has no room for them.
    """

    raw: bytes
    metadata: Mapping[str, str]


def check_form(form: str) -> None:
    """See early whether a model can be written to a file with this ending.

    Raises:
        NotExportable: The ending is none of `FORMS`, or a package that writes the file is not installed.
    """
    if form not in FORMS:
        found = f"a name in {form}" if form else "a name without an ending"
        raise NotExportable(f"a whole model: found {found}, must be one in {', '.join(FORMS)}")
    executorch = [] if find_spec("executorch") else ["executorch"]
    if missing := {".onnx": onnx_program.missing(), ".pte": executorch}.get(form):
        raise NotExportable(
            f"{form} needs {' and '.join(missing)}, not installed here; run pip install 'fedlens[export]', "
            "or take a name in .pt2"
        )


def lower(trained: Trained, form: str, about: Mapping[str, str]) -> WholeModel:
    """The model as a file of one of `FORMS`, compared with the bundle's own programs on seeded photos.

    Args:
        trained: The model.
        form: Of `FORMS`.
        about: Metadata besides those on photos and classes.

    Raises:
        NotExportable: The form is unknown, or cannot express this model.
        ParityBroken: The file computes something else than the bundle's programs.
        ProgramRefused: A program of the bundle is not safe to load.
    """
    check_form(form)
    manifest = trained.bundle.manifest
    fixed = Composed(trained)
    if form in (".onnx", ".pte") and fixed.is_quantised:
        raise NotExportable(
            f"the model cannot be written as {form}: its backbone is int8, and the bundle's emulation of it gives the "
            "same numbers in torch only; take a name in .pt2, or on phones the bundle's own .pte of `embed` and of "
            "`predict`"
        )
    tensors = frozen_tensors(fixed)
    has_backbone = manifest.bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE

    def compare(program: lowering.Function, photos: int, what: str) -> None:
        source = _source(fixed, manifest, photos)
        parity.compare(source, program, tensors, {}, f"{_NAME!r}{what}", rounds=has_backbone)

    whole = fixed
    # In a batch, sums round differently, and an emulation of integers would give other levels.
    if not fixed.is_quantised:
        any_number = deepcopy(fixed)
        any_number.take_any_number()
        with suppress(RuntimeError, ParityBroken):
            compare(_source(any_number, manifest, 2).function, 2, "")
            whole = any_number
    photos = 1 if whole is fixed or form == ".pte" else None
    metadata = {**about, **_described(manifest, photos)}
    if form == ".pte":
        source = _source(whole, manifest, 1)
        traced = lowering.trace(_NAME, source.function, parity.examples(source, tensors, {}, seed=0))
        raw, _ = pte_program.lower(_NAME, pte_program.bind(source, traced, tensors))
        compare(pte_program.load(source, raw), 1, " as PTE")
        return WholeModel(raw, metadata)
    program = _exported(whole, manifest, photos)
    if form == ".onnx":
        raw = onnx_program.lower(_NAME, program, inputs=["photos"], outputs=["logits"], metadata=metadata)
        if (run := onnx_program.load(raw)) is not None:
            compare(lambda *given: run(given[-1]), photos or 2, " as ONNX")
        return WholeModel(raw, metadata)
    module = program.module()
    compare(lambda *given: (module(given[-1]),), photos or 2, " as PT2")
    stream = io.BytesIO()
    torch.export.save(program, stream, extra_files={METADATA_FILE: json.dumps(metadata)})
    return WholeModel(stream.getvalue(), metadata)


def _source(whole: Composed, manifest: pb.Manifest, photos: int) -> ProgramSource:
    """The model as a program for so many photos, whose tensors are inputs."""
    given = float_slot(pb.SLOT_KIND_INPUT, (photos, *_photo_shape(manifest)))
    inputs = (*slots_of(pb.SLOT_KIND_FROZEN, frozen_tensors(whole)), given)
    logits = float_slot(pb.SLOT_KIND_LOGITS, (photos, len(manifest.class_names)))

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        arguments = Arguments(inputs, given)
        found: Tensor = functional_call(whole, arguments.named(pb.SLOT_KIND_FROZEN), arguments.one(pb.SLOT_KIND_INPUT))
        return (found,)

    return ProgramSource(_NAME, inputs, (logits,), function)


def _exported(whole: Composed, manifest: pb.Manifest, photos: int | None) -> ExportedProgram:
    example = torch.zeros(photos or 2, *_photo_shape(manifest))
    sizes = ({0: Dim("photos")} if photos is None else None,)
    try:
        program = torch.export.export(whole, (example,), dynamic_shapes=sizes)
    except Exception as error:  # whatever torch raises for programs that it cannot trace again
        raise NotExportable(f"the {_NAME} cannot be traced: {error}") from error
    for node in program.graph.nodes:
        # It tells where this was made.
        node.meta.pop("stack_trace", None)
    return program


def _photo_shape(manifest: pb.Manifest) -> tuple[int, int, int]:
    return 3, manifest.preprocessing.height, manifest.preprocessing.width


def _described(manifest: pb.Manifest, photos: int | None) -> dict[str, str]:
    rule, count = manifest.preprocessing, "N" if photos is None else photos
    return {
        "classes": json.dumps(list(manifest.class_names)),
        "input": f"float32 [{count}, 3, {rule.height}, {rule.width}], RGB in 0..1, not normalised: that is done inside",
        "output": f"logits, float32 [{count}, {len(manifest.class_names)}]",
        "preprocessing": f"upright, the central square, scaled to {rule.width} x {rule.height} by antialiased bilinear "
        "interpolation, divided by 255",
    }
