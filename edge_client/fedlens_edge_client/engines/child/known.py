"""Known programs, run once before the confinement: what libraries load on first use is then there."""

import base64
import io
import zlib
from types import MappingProxyType

import torch
from torch import Tensor, nn

from fedlens_proto.programs import pt2
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

_SHAPE = (2, 2)

# `relu(x * w) + 1` as ExecuTorch 1.4.1 writes it, compressed: a client need not have what writes such files.
_PTE = (
    "eNq9UzFv00AUfk5jcw0ZTIiqDAyWlQGhCKWIAUWVYEHqwNgtqiDERolkHCs9U1BB6tCBH8HQgYGRsUL8kA78BMQvaHt8d312LmkaCQn1oi939nvf"
    "977nu9siouc7m4/iUbcbYO17ZMYhz1WaDZ9a+G9irpNAxDdPRF3ghYVnF0ppXoWWDweoA8IoVDHP17Hz7pnVBt2nNgV4aln1NxBpA08Y34EMJAl8"
    "BF6tIe7O++gu1EAK7QAd9vDrTCnB/nRskktaxzyQcdrrDaJIk86v5tTKnGmc5Kh7vkrnbZ5wf75xUSt7qjHnmKG5Efen/f1kXU3/zGvdn2t9Q4+f"
    "NX5b+Se8dlh3jTkaTeyZz3mCd0RYcYfrFDx7j1yOFTm3gK942AbOsP7GPbRZ6xS1dI9U8dBr1fh1WO/LRenX/cOe9BlrcWvvlFJFHU2q0AynFveB"
    "uuS2yjNE3gnrXcfPwDF13AY16I7ZCcG3oGH5MHqeZ/bLW6E3UjM/P5b42Var/QichnXeh8JXk+5e8bWoewzdYKVunW7bulD255Qv73ZxT+uzY2WG"
    "4LMqzJroCDgA+pud4CCUH7I47AXh63ycyHG691DmWRKHnSAcTlIZv5c6mOZJYl6Nxkk0jdOXe1k8RKBf8nXGHKd4scjY/YQfPXb+c/0b9G+5/qeu"
    "l3YbjYdywWx/N7z+w/F9fTOZ7g+mEd38OHz6F7u4Adc="
)


def program(program_format: int) -> tuple[pb.Program, bytes]:
    """The description and the file of a small program."""
    message = pb.Program(
        name="known",
        inputs=[_slot(pb.SLOT_KIND_WEIGHT, name) for name in ("x", "w")],
        outputs=[_slot(pb.SLOT_KIND_LOGITS)],
    )
    if program_format == pb.PROGRAM_FORMAT_PTE:
        return message, zlib.decompress(base64.b64decode(_PTE))
    exported = torch.export.export(_Scale(), (torch.ones(_SHAPE), torch.ones(_SHAPE)))
    exported._example_inputs = None
    stream = io.BytesIO()
    torch.export.save(exported, stream)
    return message, pt2.canonical(stream.getvalue())


def use_operators() -> None:
    """Run the operators with libraries of their own: convolutions and products of matrices."""
    photos, kernels = torch.ones(2, 4, 8, 8), torch.ones(4, 4, 3, 3)
    convolved = torch.conv2d(photos, kernels, padding=1)
    torch.ops.aten.convolution_backward(
        convolved, photos, kernels, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
    )
    torch.bmm(torch.ones(1, 64, 64), torch.ones(1, 64, 64))
    torch.log_softmax(torch.max_pool2d(convolved, 2).flatten(1), 1).sum().item()


def _slot(kind: pb.SlotKind, name: str = "") -> pb.Slot:
    return pb.Slot(kind=kind, name=name, dtype=blob_pb2.DTYPE_FLOAT32, shape=_SHAPE)


class _Scale(nn.Module):
    def forward(self, inputs: Tensor, weights: Tensor) -> tuple[Tensor]:
        return (torch.relu(inputs * weights) + 1.0,)


EXPECTED = MappingProxyType({0: 1.0, 1: 2.0})
"""Each value of the output, if both inputs are filled with this one."""
