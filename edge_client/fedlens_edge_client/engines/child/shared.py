"""Tensors in memory that client and child share; the manifest says where each one is, so neither tells the other."""

import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedlens_edge_client.engines.feed import NUMPY, OF_BATCH
from fedlens_edge_client.engines.loaded import LoadedProgram
from fedlens_proto.v1 import manifest_pb2 as pb

# Runs that may be under way at a time, so that the child need not wait for the client after each; large batches take
# long enough by themselves, and too much memory.
_LEAST_LANES, _MOST_LANES, _LANES_BYTES = 2, 8, 16 << 20
_ALIGNED = 64  # as torch aligns its own tensors: some operators round differently elsewhere


@dataclass(frozen=True)
class Lane:
    """The tensors of one run, by index of input or output."""

    inputs: dict[int, Tensor]
    outputs: dict[int, Tensor]


class SharedTensors:
    """The arguments and outputs of one program in shared memory.

    Attributes:
        steady: The inputs that do not change from batch to batch, by index.
        lanes: The others, and the outputs that replace no input; each run has a lane to itself.
    """

    def __init__(self, program: LoadedProgram, buffer: mmap.mmap) -> None:
        """Lay the tensors out over `buffer`, which has `shared_bytes` of the program."""
        self._buffer, self._at = buffer, 0
        self.steady = self._placed(program.inputs, [i for i, s in enumerate(program.inputs) if s.kind not in OF_BATCH])
        varying = [i for i, slot in enumerate(program.inputs) if slot.kind in OF_BATCH]
        given = _given(program)
        self.lanes = [
            Lane(self._placed(program.inputs, varying), self._placed(program.outputs, given))
            for _ in range(_lanes(program)[0])
        ]

    def _placed(self, slots: Sequence[pb.Slot], wanted: Sequence[int]) -> dict[int, Tensor]:
        placed = {}
        for i in wanted:
            shape = tuple(slots[i].shape)
            flat = np.frombuffer(self._buffer, NUMPY[slots[i].dtype].type, prod(shape), self._at)
            placed[i] = torch.from_numpy(flat.reshape(shape))
            self._at += _bytes(slots[i])
        return placed


def shared_bytes(program: LoadedProgram) -> int:
    """The bytes that the tensors of a program take in shared memory; at least 1."""
    steady = sum(_bytes(slot) for slot in program.inputs if slot.kind not in OF_BATCH)
    count, lane_bytes = _lanes(program)
    return steady + count * lane_bytes or 1


def _lanes(program: LoadedProgram) -> tuple[int, int]:
    """The number of lanes, and the bytes of each."""
    varying = sum(_bytes(slot) for slot in program.inputs if slot.kind in OF_BATCH)
    size = varying + sum(_bytes(program.outputs[i]) for i in _given(program))
    return min(_MOST_LANES, max(_LEAST_LANES, _LANES_BYTES // max(size, 1))), size


def _given(program: LoadedProgram) -> list[int]:
    """The indices of the outputs that replace no input."""
    carried = {source for source, _ in program.carried}
    return [i for i in range(len(program.outputs)) if i not in carried]


def _bytes(slot: pb.Slot) -> int:
    size = prod(slot.shape) * NUMPY[slot.dtype].itemsize
    return -(-size // _ALIGNED) * _ALIGNED


def shared_file(size: int) -> int:
    """The descriptor of a new file of `size` bytes in memory that has no name for other processes.

    On Linux nobody can change its size: a file that got shorter would end whoever reads what it has lost. Elsewhere
    it is a temporary file, and a hostile child can do that to the client.
    """
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            return os.dup(file.fileno())
    import fcntl

    descriptor = os.memfd_create("fedlens", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def mapped(descriptor: int, size: int) -> mmap.mmap:
    """The memory of a file, which stays when the descriptor is closed here."""
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
