"""The bundle that stands beside `networks.network`: one classifier on several of its extractors. Nobody runs it."""

import numpy as np

from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.server.bundles import TinyBundle, sealed
from tests.server.networks import network

D = 2  # inputs of the network's classifier


def concatenated(extractors: int, *, width: int = 3, fill: float = 0.5) -> TinyBundle:
    """With room for so many; all weights of its classifier are `fill`."""
    ordinary = network(width)
    manifest = ordinary.parsed
    extract = manifest.programs.add(name="extract", files=manifest.programs[0].files)
    for tensor in manifest.tensors:
        if tensor.role == pb.TENSOR_ROLE_EXTRACTOR:
            extract.inputs.add(kind=pb.SLOT_KIND_EXTRACTOR, name=tensor.name, dtype=tensor.dtype, shape=tensor.shape)
    extract.inputs.extend(slot for slot in manifest.programs[0].inputs if slot.kind == pb.SLOT_KIND_INPUT)
    floats = blob_pb2.DTYPE_FLOAT32
    extract.outputs.add(kind=pb.SLOT_KIND_FEATURES, dtype=floats, shape=(manifest.batch, D))
    for other in manifest.programs[:2]:
        del other.inputs[:]
        other.inputs.add(kind=pb.SLOT_KIND_INPUT, dtype=floats, shape=(manifest.batch, extractors * D))
    manifest.concatenated = extractors
    tensors = {
        "classifier.bias": np.full(2, fill, np.float32),
        "classifier.weight": np.full((2, extractors * D), fill, np.float32),
    }
    return sealed(manifest, tensors, ordinary.parts[1])
