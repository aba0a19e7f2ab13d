"""A program's arguments: weights, batches and hyper-parameters as tensors, checked against its slots."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlens_edge_client.engines import BadInput, BundleUnusable, Rows
from fedlens_edge_client.engines.loaded import DTYPES, LoadedProgram
from fedlens_proto.blob import Array
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

_NUMPY = {blob_pb2.DTYPE_FLOAT32: np.dtype(np.float32), blob_pb2.DTYPE_INT64: np.dtype(np.int64)}


class Feed:
    """The input tensors of a program, refilled for each batch without allocation."""

    def __init__(self, program: LoadedProgram, rows: Rows, classes: int, filled: bool) -> None:
        """Check rows against a program with one slot of kind `SLOT_KIND_INPUT`.

        Args:
            program: Runs the batches.
            rows: The source of the batches.
            classes: Upper bound of the labels, exclusive.
            filled: Every batch must be full, as trainable BatchNorm requires.

        Raises:
            BadInput: The rows do not match the program.
        """
        slot = program.inputs[program.index(program.inputs, pb.SLOT_KIND_INPUT)]
        self.batch, self.count, self.filled = slot.shape[0], len(rows.labels), filled
        if rows.views is None:
            check_array("the rows' inputs", rows.inputs, (self.count, *slot.shape[1:]), slot.dtype)
        elif rows.views.shape != (self.count, *slot.shape[1:]):
            found, taken = list(rows.views.shape), [self.count, *slot.shape[1:]]
            raise BadInput(f"the rows' views: found {found}, the bundle takes {taken}")
        check_array("the rows' labels", rows.labels, (self.count,), blob_pb2.DTYPE_INT64)
        wrong = rows.labels[(rows.labels < 0) | (rows.labels >= classes)]
        if len(wrong):
            raise BadInput(f"label {wrong[0]} is not one of 0 to {classes - 1}")
        self._rows = rows
        self.inputs = torch.zeros(tuple(slot.shape))
        self.labels = torch.zeros(self.batch, dtype=torch.int64)
        self.mask = torch.ones(self.batch)
        self._inputs, self._labels, self._mask = self.inputs.numpy(), self.labels.numpy(), self.mask.numpy()
        self._real = self.batch

    def fill(self, indices: NDArray[np.int64]) -> None:
        """Put these rows first and mask the rest.

        Raises:
            BadInput: The batch has too many or too few rows, or an index is out of range.
        """
        real = len(indices)
        if not 1 <= real <= self.batch or (self.filled and real != self.batch):
            allowed = f"exactly {self.batch}" if self.filled else f"1 to {self.batch}"
            raise BadInput(f"a batch of {real} rows; the bundle takes {allowed}")
        if indices.min() < 0 or indices.max() >= self.count:
            raise BadInput(f"a batch asks for a row outside 0 to {self.count - 1}")
        # Rows of an earlier batch may remain behind these; programs mask their inputs, so they have no effect.
        if self._rows.views is None:
            self._rows.inputs.take(indices, axis=0, out=self._inputs[:real], mode="clip")
        else:
            self._rows.views.take(indices, self._inputs[:real])
        self._rows.labels.take(indices, out=self._labels[:real], mode="clip")
        if real != self._real:
            self._mask[:real] = 1
            self._mask[real:] = 0
            self._real = real


def argument(
    slot: pb.Slot,
    feed: Feed,
    weights: Mapping[str, Array],
    hyper: Mapping[str, float],
    references: Mapping[str, Mapping[str, Array]],
) -> Tensor:
    """The value of a slot at the start of a stage; later only batches and carried values change.

    Raises:
        BadInput: A tensor is missing, or has another shape or dtype.
        BundleUnusable: This engine does not know the kind of the slot.
    """
    match slot.kind:
        case pb.SLOT_KIND_WEIGHT:
            return tensor(slot, weights, "the weights")
        case pb.SLOT_KIND_EXTRACTOR:
            return tensor(slot, weights, "the extractor")
        case pb.SLOT_KIND_REFERENCE:
            reference, _, name = slot.name.partition("/")
            if reference not in references:
                raise BadInput(f"reference {reference!r} is missing; the bundle's step compares with it")
            return tensor(slot, references[reference], f"reference {reference!r}", name)
        case pb.SLOT_KIND_OPTIMISER | pb.SLOT_KIND_COUNTER:
            return torch.zeros(tuple(slot.shape), dtype=DTYPES[slot.dtype])
        case pb.SLOT_KIND_INPUT:
            return feed.inputs
        case pb.SLOT_KIND_LABEL:
            return feed.labels
        case pb.SLOT_KIND_MASK:
            return feed.mask
        case pb.SLOT_KIND_HYPER:
            return torch.tensor(hyper[slot.name], dtype=torch.float32)
        case _:
            raise BundleUnusable(f"an input of kind {pb.SlotKind.Name(slot.kind)} is not known to this engine")


def tensor(slot: pb.Slot, tensors: Mapping[str, Array], where: str, name: str = "") -> Tensor:
    """A copy of the tensor for a slot, by `name` or else the slot's own name; errors as in `check_array`."""
    name = name or slot.name
    if name not in tensors:
        raise BadInput(f"tensor {name!r} is missing from {where}")
    array = tensors[name]
    check_array(f"tensor {name!r} of {where}", array, tuple(slot.shape), slot.dtype)
    return copied(array)


def copied(array: Array) -> Tensor:
    """A tensor in memory of its own: blobs are read-only, and callers may modify their arrays."""
    return torch.from_numpy(np.array(array, order="C"))


def check_array(what: str, array: Array, shape: Sequence[int], dtype: blob_pb2.Dtype) -> None:
    """Check the shape and dtype of an array; `what` starts the error's text.

    Raises:
        BadInput: The array does not match.
    """
    wanted = _NUMPY[dtype]
    if tuple(array.shape) != tuple(shape) or array.dtype != wanted:
        raise BadInput(f"{what}: found {array.dtype}{list(array.shape)}, the bundle takes {wanted}{list(shape)}")
