"""A trained model as one program from photos to logits, which runs without FedLens.

It takes any number of photos where the bundle's programs can be freed of theirs; otherwise, and on phones, one.
"""

import io
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from fedlens_export.errors import NotExportable, ParityBroken
from fedlens_export.programs import lowering, onnx_program, parity, pte_program
from fedlens_export.programs.composed import NAME, Composed, Trained
from fedlens_proto.v1 import manifest_pb2 as pb

FORMS = (".pt2", ".onnx", ".pte")
"""Endings of the files: a program of `torch.export`, ONNX, a program of ExecuTorch."""

METADATA_FILE = "fedlens.json"
"""Name of the metadata among the `extra_files` of a program of `torch.export`."""


@dataclass(frozen=True)
class WholeModel:
    """The content of a file.

    Attributes:
        raw: Its bytes.
        metadata: By key, what a caller must know of photos and classes; it is inside the file too, but not in a `.pte`,
            which has no room for it.
    """

    raw: bytes
    metadata: Mapping[str, str]


def check_form(form: str) -> None:
    """See early whether models can be written in the form of this ending.

    Raises:
        NotExportable: There is no such form, or what makes it is not installed.
    """
    if form not in FORMS:
        found = f"a name in {form}" if form else "a name without an ending"
        raise NotExportable(f"a whole model: found {found}, must be one in {', '.join(FORMS)}")
    needed = {".onnx": ("onnx", "onnxscript"), ".pte": ("executorch",)}.get(form, ())
    if missing := [name for name in needed if find_spec(name) is None]:
        raise NotExportable(
            f"{form} needs {' and '.join(missing)}, not installed here; run pip install 'fedlens[export]', "
            "or take a name in .pt2"
        )


def lower(trained: Trained, form: str, about: Mapping[str, str]) -> WholeModel:
    """The model in the form of an ending, compared with the bundle's own programs on seeded photos.

    Args:
        trained: The model.
        form: Of `FORMS`.
        about: Metadata besides those on photos and classes.

    Raises:
        NotExportable: The form is not there, or cannot express this model.
        ParityBroken: The file computes something else than the bundle's programs.
        ProgramRefused: A program of the bundle is not safe to load.
    """
    check_form(form)
    fixed = Composed.of(trained)
    if form in (".onnx", ".pte") and fixed.is_quantised:
        raise NotExportable(
            f"the model cannot be written as {form}: its backbone is int8, of which the bundle has an emulation "
            "that gives the same numbers in torch only; take a name in .pt2, or on phones the bundle's own .pte of "
            "`embed` and of `predict`"
        )
    known = fixed.tensors
    has_backbone = trained.bundle.manifest.bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE

    def compare(program: lowering.Function, photos: int, what: str) -> None:
        parity.compare(fixed.source(photos), program, known, {}, f"{NAME!r}{what}", rounds=has_backbone)

    composed = fixed
    # In a batch sums round otherwise, and of integers some would fall on another level.
    if not fixed.is_quantised:
        freed = fixed.freed()
        with suppress(RuntimeError, ParityBroken):
            compare(freed.source(2).function, 2, "")
            composed = freed
    photos = 1 if composed is fixed or form == ".pte" else None
    metadata = {**about, **_described(trained, photos)}
    if form == ".pte":
        source = composed.source(1)
        traced = lowering.trace(NAME, source.function, parity.examples(source, known, {}, seed=0))
        raw, _ = pte_program.lower(NAME, pte_program.bind(source, traced, known))
        compare(pte_program.load(source, raw), 1, " as PTE")
        return WholeModel(raw, metadata)
    program = _exported(composed, photos)
    if form == ".onnx":
        raw = onnx_program.lower(NAME, program, inputs=["photos"], outputs=["logits"], metadata=metadata)
        if (run := onnx_program.load(raw)) is not None:
            compare(lambda *given: run(given[-1]), photos or 2, " as ONNX")
        return WholeModel(raw, metadata)
    module = program.module()
    compare(lambda *given: (module(given[-1]),), photos or 2, " as PT2")
    stream = io.BytesIO()
    torch.export.save(program, stream, extra_files={METADATA_FILE: json.dumps(metadata)})
    return WholeModel(stream.getvalue(), metadata)


class _Whole(nn.Module):
    """What torch.export takes."""

    def __init__(self, composed: Composed) -> None:
        super().__init__()
        self.composed = composed
        tensors = composed.tensors
        # No dot may be in the name of a parameter.
        self.keys = {name: name.replace(".", "/") for name in tensors}
        self.tensors = nn.ParameterDict({self.keys[n]: nn.Parameter(tensor, False) for n, tensor in tensors.items()})

    def forward(self, photos: Tensor) -> Tensor:
        return self.composed({name: self.tensors[key] for name, key in self.keys.items()}, photos)


def _exported(composed: Composed, photos: int | None) -> ExportedProgram:
    example = torch.zeros(photos or 2, *composed.photo_shape)
    sizes = ({0: Dim("photos")} if photos is None else None,)
    try:
        program = torch.export.export(_Whole(composed), (example,), dynamic_shapes=sizes)
    except Exception as error:  # whatever torch raises for programs that it cannot trace again
        raise NotExportable(f"the {NAME} cannot be traced: {error}") from error
    for node in program.graph.nodes:
        # It tells where this was made.
        node.meta.pop("stack_trace", None)
    return program


def _described(trained: Trained, photos: int | None) -> dict[str, str]:
    manifest = trained.bundle.manifest
    rule, count = manifest.preprocessing, "N" if photos is None else photos
    return {
        "classes": json.dumps(list(manifest.class_names)),
        "input": f"float32 [{count}, 3, {rule.height}, {rule.width}], RGB in 0..1, not normalised: that is done inside",
        "output": f"logits, float32 [{count}, {len(manifest.class_names)}]",
        "preprocessing": f"upright, the central square, scaled to {rule.width} x {rule.height} by antialiased bilinear "
        "interpolation, divided by 255",
    }
