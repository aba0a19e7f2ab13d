"""Tiny bundles made without torch: their programs are bytes that nobody runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from fedlens_proto import blob
from fedlens_proto.v1 import blob_pb2, manifest_pb2

FEATURES, CLASSES = 3, 2
_LINEAR = manifest_pb2.TENSOR_KIND_LINEAR
_KINDS = {"conv": manifest_pb2.TENSOR_KIND_CONV, "fc": _LINEAR, "classifier": _LINEAR}


@dataclass(frozen=True)
class TinyBundle:
    """A manifest and its parts."""

    manifest: bytes
    parts: tuple[bytes, ...]
    initial: bytes  # the blob

    @property
    def id(self) -> bytes:
        return sha256(self.manifest).digest()

    @property
    def by_digest(self) -> dict[bytes, bytes]:
        return {sha256(part).digest(): part for part in self.parts}

    @property
    def parsed(self) -> manifest_pb2.Manifest:
        """The manifest, for changes."""
        return manifest_pb2.Manifest.FromString(self.manifest)


def tiny_bundle(
    features: int = FEATURES,
    classes: int = CLASSES,
    *,
    references: Sequence[str] = (),
    formats: Sequence[manifest_pb2.ProgramFormat] = (manifest_pb2.PROGRAM_FORMAT_PT2,),
    model: str = "tiny",
    fill: float = 0.0,
    with_counter: bool = False,
    class_prefix: str = "class",
) -> TinyBundle:
    """A linear classifier on `features` numbers, all weights `fill`."""
    tensors: dict[str, blob.Array] = {
        "fc.bias": np.full(classes, fill, np.float32),
        "fc.weight": np.full((classes, features), fill, np.float32),
    }
    if with_counter:
        tensors["bn.batches"] = np.array(3, np.int64)
    program = f"program of {model}".encode()
    logits = _slot(manifest_pb2.SLOT_KIND_LOGITS, 4, classes)
    manifest = manifest_pb2.Manifest(
        format=1,
        bundle_class=manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL,
        model=model,
        preprocessing=manifest_pb2.Preprocessing(version=1, height=8, width=8),
        class_names=[f"{class_prefix} {i}" for i in range(classes)],
        batch=4,
        hyper_parameters=[
            manifest_pb2.HyperParameter(name="lr_classifier", default_value=0.1, minimum=0.0, maximum=10.0),
            manifest_pb2.HyperParameter(name="momentum", default_value=0.0, minimum=0.0, maximum=1.0),
        ],
        last_batch=manifest_pb2.LAST_BATCH_MASKED,
        programs=[
            manifest_pb2.Program(
                name=name,
                inputs=[_slot(manifest_pb2.SLOT_KIND_INPUT, 4, features)],
                outputs=outputs,
                files=[manifest_pb2.ProgramFile(format=kind, sha256=sha256(program).digest()) for kind in formats],
            )
            for name, outputs in (("predict", [logits]), ("step", [_slot(manifest_pb2.SLOT_KIND_LOSS), logits]))
        ],
    )
    manifest.programs[1].objective, manifest.programs[1].optimiser = "cross_entropy", "sgd"
    bundle = sealed(manifest, tensors, program)
    return with_references(bundle, dict.fromkeys(references, sorted(tensors))) if references else bundle


def sealed(manifest: manifest_pb2.Manifest, tensors: Mapping[str, blob.Array], program: bytes) -> TinyBundle:
    """The bundle with these tensors, which are its initial weights; their names say what they are."""
    initial = blob.encode(tensors)
    parts = sorted((sha256(part).digest(), len(part)) for part in (initial, program))
    del manifest.tensors[:], manifest.parts[:]
    manifest.tensors.extend(_exchangeable(name, value) for name, value in sorted(tensors.items()))
    manifest.parts.extend(manifest_pb2.Part(sha256=digest, size=size) for digest, size in parts)
    manifest.initial = sha256(initial).digest()
    refit(manifest)
    return TinyBundle(manifest.SerializeToString(deterministic=True), (initial, program), initial)


def refit(manifest: manifest_pb2.Manifest) -> None:
    """Have `step` and `predict` take the manifest's tensors, and `step` its hyper-parameters, and train the former."""
    weights = [
        manifest_pb2.Slot(kind=manifest_pb2.SLOT_KIND_WEIGHT, name=tensor.name, dtype=tensor.dtype, shape=tensor.shape)
        for tensor in manifest.tensors
    ]
    scalars = [_slot(manifest_pb2.SLOT_KIND_HYPER, name=hyper.name) for hyper in manifest.hyper_parameters]
    replaced = (manifest_pb2.SLOT_KIND_WEIGHT, manifest_pb2.SLOT_KIND_HYPER)
    for program in manifest.programs:
        trains = program.name == "step"
        if trains or program.name == "predict":
            inputs = [slot for slot in program.inputs if slot.kind not in replaced]
            outputs = [slot for slot in program.outputs if slot.kind not in replaced]
            del program.inputs[:], program.outputs[:]
            program.inputs.extend([*weights, *inputs, *(scalars if trains else ())])
            program.outputs.extend([*(weights if trains else ()), *outputs])


def with_references(bundle: TinyBundle, references: Mapping[str, Sequence[str]]) -> TinyBundle:
    """The bundle whose `step` takes these tensors of each reference, too."""
    manifest = bundle.parsed
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    (step,) = (program for program in manifest.programs if program.name == "step")
    for reference, names in references.items():
        for name in names:
            like = tensors[name]
            kind = manifest_pb2.SLOT_KIND_REFERENCE
            step.inputs.add(kind=kind, name=f"{reference}/{name}", dtype=like.dtype, shape=like.shape)
    return TinyBundle(manifest.SerializeToString(deterministic=True), bundle.parts, bundle.initial)


def _exchangeable(name: str, value: blob.Array) -> manifest_pb2.ExchangeableTensor:
    layer, _, what = name.partition(".")
    other = manifest_pb2.TENSOR_KIND_NORM if what == "weight" else manifest_pb2.TENSOR_KIND_BUFFER
    return manifest_pb2.ExchangeableTensor(
        name=name,
        dtype=blob_pb2.DTYPE_FLOAT32 if value.dtype.kind == "f" else blob_pb2.DTYPE_INT64,
        shape=value.shape,
        kind=_KINDS.get(layer, other),
        role=manifest_pb2.TENSOR_ROLE_EXTRACTOR if layer in ("conv", "bn") else manifest_pb2.TENSOR_ROLE_CLASSIFIER,
    )


def _slot(kind: manifest_pb2.SlotKind, *shape: int, name: str = "") -> manifest_pb2.Slot:
    return manifest_pb2.Slot(kind=kind, name=name, dtype=blob_pb2.DTYPE_FLOAT32, shape=shape)
