"""Parts of manifests of a linear layer, for tests that store programs and never run them."""

from collections.abc import Mapping
from hashlib import sha256

from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb


def slot(kind: pb.SlotKind, name: str = "", shape: tuple[int, ...] = ()) -> pb.Slot:
    return pb.Slot(kind=kind, name=name, dtype=blob_pb2.DTYPE_FLOAT32, shape=shape)


def program(name: str, content: bytes, *inputs: pb.Slot) -> pb.Program:
    """A program of a bundle with batches of four and two classes; `step` trains the weights that it takes."""
    file = pb.ProgramFile(format=pb.PROGRAM_FORMAT_PT2, sha256=sha256(content).digest())
    logits = slot(pb.SLOT_KIND_LOGITS, shape=(4, 2))
    if name != "step":
        outputs = [logits] if name == "predict" else [slot(pb.SLOT_KIND_FEATURES, shape=(1, 3))]
        return pb.Program(name=name, inputs=inputs, outputs=outputs, files=[file])
    weights = [each for each in inputs if each.kind == pb.SLOT_KIND_WEIGHT]
    trained = [*weights, slot(pb.SLOT_KIND_LOSS), logits]
    return pb.Program(name=name, inputs=inputs, outputs=trained, files=[file], objective="softmax")


def classifier(shapes: Mapping[str, tuple[int, ...]]) -> list[pb.ExchangeableTensor]:
    """The tensors of an FC layer that is the classifier."""
    return [
        pb.ExchangeableTensor(
            name=name,
            dtype=blob_pb2.DTYPE_FLOAT32,
            shape=shape,
            kind=pb.TENSOR_KIND_LINEAR,
            role=pb.TENSOR_ROLE_CLASSIFIER,
        )
        for name, shape in shapes.items()
    ]
