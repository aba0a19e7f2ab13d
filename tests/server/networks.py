"""A tiny network of every kind of tensor: convolution, BatchNorm with its buffers, FC classifier. Nobody runs it."""

from hashlib import sha256

import numpy as np

from fedlens_proto import blob
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.server.bundles import TinyBundle, tiny_bundle

_KINDS = {"conv": pb.TENSOR_KIND_CONV, "fc": pb.TENSOR_KIND_LINEAR}


def weights(value: float, fc: tuple[tuple[float, ...], ...] | None = None, width: int = 3) -> dict[str, blob.Array]:
    """Every float `value` and the counter so too, but for the classifier's weight `fc`, [2, 2]."""
    return {
        "bn.batches": np.array(int(value), np.int64),
        "bn.mean": np.full(2, value, np.float32),
        "bn.weight": np.full(2, value, np.float32),
        "conv.weight": np.full((2, width), value, np.float32),
        "fc.bias": np.full(2, value, np.float32),
        "fc.weight": np.full((2, 2), value, np.float32) if fc is None else np.float32(fc),
    }


def network(width: int = 3) -> TinyBundle:
    """Its bundle, all weights 0; a blob is a file for a width of 10,000."""
    bundle = tiny_bundle()
    tensors = weights(0.0, width=width)
    initial = blob.encode(tensors)
    manifest = pb.Manifest.FromString(bundle.manifest)
    del manifest.tensors[:]
    for name, value in sorted(tensors.items()):
        layer, _, what = name.partition(".")
        normal = pb.TENSOR_KIND_NORM if what == "weight" else pb.TENSOR_KIND_BUFFER
        manifest.tensors.add(
            name=name,
            dtype=blob_pb2.DTYPE_FLOAT32 if value.dtype.kind == "f" else blob_pb2.DTYPE_INT64,
            shape=value.shape,
            kind=_KINDS.get(layer, normal),
            role=pb.TENSOR_ROLE_CLASSIFIER if layer == "fc" else pb.TENSOR_ROLE_EXTRACTOR,
        )
    manifest.initial = sha256(initial).digest()
    program = bundle.parts[1]
    del manifest.parts[:]
    for part in sorted((initial, program), key=lambda part: sha256(part).digest()):
        manifest.parts.add(sha256=sha256(part).digest(), size=len(part))
    return TinyBundle(manifest.SerializeToString(deterministic=True), (initial, program), initial)
