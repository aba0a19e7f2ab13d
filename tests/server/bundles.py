"""Tiny bundles made without torch: their programs are bytes that nobody runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from fedlens_proto import blob
from fedlens_proto.v1 import blob_pb2, manifest_pb2

FEATURES, CLASSES = 3, 2


@dataclass(frozen=True)
class TinyBundle:
    """A manifest and its parts."""

    manifest: bytes
    parts: tuple[bytes, ...]
    initial: bytes  # the blob


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
    initial = blob.encode(tensors)
    program = f"program of {model}".encode()
    manifest = manifest_pb2.Manifest(
        format=1,
        bundle_class=manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL,
        model=model,
        preprocessing=manifest_pb2.Preprocessing(version=1, height=8, width=8),
        class_names=[f"{class_prefix} {i}" for i in range(classes)],
        batch=4,
        tensors=[
            manifest_pb2.ExchangeableTensor(
                name=name,
                dtype=blob_pb2.DTYPE_FLOAT32 if value.dtype.kind == "f" else blob_pb2.DTYPE_INT64,
                shape=value.shape,
                kind=manifest_pb2.TENSOR_KIND_LINEAR if name.startswith("fc") else manifest_pb2.TENSOR_KIND_BUFFER,
                role=(
                    manifest_pb2.TENSOR_ROLE_CLASSIFIER if name.startswith("fc") else manifest_pb2.TENSOR_ROLE_EXTRACTOR
                ),
            )
            for name, value in sorted(tensors.items())
        ],
        objective="cross_entropy",
        optimiser="sgd",
        hyper_parameters=[
            manifest_pb2.HyperParameter(name="lr_classifier", default_value=0.1, minimum=0.0, maximum=10.0),
            manifest_pb2.HyperParameter(name="momentum", default_value=0.0, minimum=0.0, maximum=1.0),
        ],
        references=[manifest_pb2.Reference(name=name, tensors=sorted(tensors)) for name in references],
        last_batch=manifest_pb2.LAST_BATCH_MASKED,
        programs=[
            manifest_pb2.Program(
                name=name,
                inputs=[_slot(manifest_pb2.SLOT_KIND_INPUT, 4, features)],
                outputs=[_slot(manifest_pb2.SLOT_KIND_LOGITS, 4, classes)],
                files=[manifest_pb2.ProgramFile(format=kind, sha256=sha256(program).digest()) for kind in formats],
            )
            for name in ("predict", "step")
        ],
        initial=sha256(initial).digest(),
        parts=[
            manifest_pb2.Part(sha256=digest, size=size)
            for digest, size in sorted((sha256(part).digest(), len(part)) for part in (initial, program))
        ],
    )
    return TinyBundle(manifest.SerializeToString(deterministic=True), (initial, program), initial)


def _slot(kind: manifest_pb2.SlotKind, *shape: int) -> manifest_pb2.Slot:
    return manifest_pb2.Slot(kind=kind, dtype=blob_pb2.DTYPE_FLOAT32, shape=shape)
