"""A child like any other, but that it runs a program's file as Python: what a program could do that has taken over.

A file that does not begin with `#` is a harmless program whose outputs are zeros.
"""

import ctypes
import os
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from fedlens_edge_client.engines import EngineError
from fedlens_edge_client.engines.child import process
from fedlens_edge_client.engines.loaded import DTYPES, OwnProgram
from fedlens_proto.v1 import manifest_pb2 as pb

LINK = int(sys.argv[1])
# Opened before the confinement, to look for what a child must not have.
MAPS = os.open("/proc/self/maps", os.O_RDONLY)
MEMORY = os.open("/proc/self/mem", os.O_RDONLY)
LIBRARY = ctypes.CDLL(None)


class Hostile(OwnProgram):
    def __init__(self, message: pb.Program, raw: bytes) -> None:
        super().__init__(message)
        self.source = raw if raw.startswith(b"#") else b""

    def prepare(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return ()

    def run(self, arguments: Sequence[Tensor], prepared: Sequence[Tensor]) -> Sequence[Tensor]:
        exec(self.source, globals())
        return [torch.zeros(tuple(slot.shape), dtype=DTYPES[slot.dtype]) for slot in self.outputs]


def found(first: bytes, second: bytes) -> bool:
    """Whether memory that can be written holds `first` and then `second`; the two are nowhere else together."""
    os.lseek(MAPS, 0, os.SEEK_SET)
    chunk, rest = os.read(MAPS, 1 << 16), b""
    while chunk:
        rest, chunk = rest + chunk, os.read(MAPS, 1 << 16)
    for line in rest.splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split(b"-"))
        if line.split()[1].startswith(b"rw") and b"memfd" not in line and _holds(start, end, first, second):
            return True
    return False


def _holds(start: int, end: int, first: bytes, second: bytes) -> bool:
    raw = os.pread(MEMORY, end - start, start)
    at = raw.find(first)
    while at >= 0:
        if raw[at + len(first) :].startswith(second):
            return True
        at = raw.find(first, at + 1)
    return False


def tell(text: object) -> None:
    """Let the client know something."""
    raise EngineError(str(text))


if __name__ == "__main__":
    process.main(sys.argv[1:], dict.fromkeys(process.LOADERS, Hostile))
