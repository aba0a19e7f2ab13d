"""A program's arguments: weights, batches and hyper-parameters as tensors, checked against its slots."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlens_edge_client.engines import BadInput, BundleUnusable, Rows
from fedlens_edge_client.engines.loaded import DTYPES, LoadedProgram
from fedlens_proto.blob import Array
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

References = Mapping[str, Mapping[str, Array]]
Uniforms = Callable[[int, int, int], NDArray[np.float32]]
OF_BATCH = (
    *(pb.SLOT_KIND_INPUT, pb.SLOT_KIND_LABEL, pb.SLOT_KIND_MASK),
    *(pb.SLOT_KIND_TARGET, pb.SLOT_KIND_UNIFORM),
)
"""Kinds of inputs that change from batch to batch."""
NUMPY: dict[blob_pb2.Dtype, np.dtype[np.float32] | np.dtype[np.int64]] = {
    blob_pb2.DTYPE_FLOAT32: np.dtype(np.float32),
    blob_pb2.DTYPE_INT64: np.dtype(np.int64),
}


class Feed:
    """The input tensors of a program that change from batch to batch, refilled without allocation.

    Attributes:
        batch: Rows of a run.
        count: Rows in all.
    """

    def __init__(
        self,
        program: LoadedProgram,
        rows: Rows,
        classes: int,
        references: References = MappingProxyType({}),
        *,
        filled: bool = False,
        uniforms: Uniforms | None = None,
    ) -> None:
        """Check rows against a program with one slot of kind `SLOT_KIND_INPUT`.

        Args:
            program: Runs the batches.
            rows: The source of the batches.
            classes: Upper bound of the labels, exclusive.
            references: Of some the program takes the rows of each batch.
            filled: Every batch must be full, as trainable BatchNorm requires.
            uniforms: As in `Engine.train`.

        Raises:
            BadInput: Rows, references or uniforms do not match the program.
        """
        slot = program.inputs[program.index(program.inputs, pb.SLOT_KIND_INPUT)]
        self.batch, self.count = slot.shape[0], len(rows.labels)
        self._filled, self._draw = filled, uniforms
        if rows.views is None:
            check_array("the rows' inputs", rows.inputs, (self.count, *slot.shape[1:]), slot.dtype)
        elif rows.views.shape != (self.count, *slot.shape[1:]):
            found, taken = list(rows.views.shape), [self.count, *slot.shape[1:]]
            raise BadInput(f"the rows' views: found {found}, the bundle takes {taken}")
        check_array("the rows' labels", rows.labels, (self.count,), blob_pb2.DTYPE_INT64)
        wrong = rows.labels[(rows.labels < 0) | (rows.labels >= classes)]
        if len(wrong):
            raise BadInput(f"label {wrong[0]} is not one of 0 to {classes - 1}")
        self._views, self._tensors = rows.views, {}
        self._rows: list[tuple[Array, Array]] = []  # all rows, and those of the batch
        for each in program.inputs:
            if each.kind not in OF_BATCH:
                continue
            tensor = self._tensors[each.kind, each.name] = zeros(each)
            if each.kind == pb.SLOT_KIND_INPUT:
                self._inputs = tensor.numpy()
                if rows.views is None:
                    self._rows.append((rows.inputs, self._inputs))
            elif each.kind == pb.SLOT_KIND_LABEL:
                self._rows.append((rows.labels, tensor.numpy()))
            elif each.kind == pb.SLOT_KIND_TARGET:
                whole = bound(each, references, program.optional, (self.count, *each.shape[1:]))
                if whole is not None:
                    self._rows.append((whole, tensor.numpy()))
        self._masks = [t.numpy() for (kind, _), t in self._tensors.items() if kind == pb.SLOT_KIND_MASK]
        self._uniforms = [t.numpy() for (kind, _), t in self._tensors.items() if kind == pb.SLOT_KIND_UNIFORM]
        if self._uniforms and uniforms is None:
            raise BadInput(f"program {program.name!r} takes random numbers, and none are given")
        self._batches = 0

    def tensor(self, slot: pb.Slot) -> Tensor:
        """The tensor of a slot that changes from batch to batch."""
        return self._tensors[slot.kind, slot.name]

    def fill(self, indices: NDArray[np.int64]) -> None:
        """Put these rows first and mask the rest; draw new random numbers.

        Raises:
            BadInput: The batch has too many or too few rows, or an index is out of range.
        """
        real = len(indices)
        if not 1 <= real <= self.batch or (self._filled and real != self.batch):
            allowed = f"exactly {self.batch}" if self._filled else f"1 to {self.batch}"
            raise BadInput(f"a batch of {real} rows; the bundle takes {allowed}")
        if indices.min() < 0 or indices.max() >= self.count:
            raise BadInput(f"a batch asks for a row outside 0 to {self.count - 1}")
        # Rows of an earlier batch may remain behind these; programs mask their inputs, so they have no effect.
        for whole, part in self._rows:
            whole.take(indices, axis=0, out=part[:real], mode="clip")
        if self._views is not None:
            self._views.take(indices, self._inputs[:real])
        for mask in self._masks:
            mask[:real], mask[real:] = 1, 0
        if self._draw is not None:
            for number, uniforms in enumerate(self._uniforms):
                uniforms.reshape(-1)[:] = self._draw(self._batches, number, uniforms.size)
        self._batches += 1


def argument(
    slot: pb.Slot,
    feed: Feed | None,
    weights: Mapping[str, Array],
    hyper: Mapping[str, float],
    references: References,
    optional: Sequence[str],
) -> Tensor:
    """The value of a slot before the first batch; later only batches and carried values change.

    Args:
        slot: An input of a program.
        feed: Its rows; None: it takes none.
        weights: Its weights, or the tensors of its extractor.
        hyper: Its hyper-parameters.
        references: Those that are bound.
        optional: Names of those that need not be.

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
            found = bound(slot, references, optional, tuple(slot.shape))
            return zeros(slot) if found is None else copied(found)
        case pb.SLOT_KIND_PRESENT:
            return torch.tensor(float(slot.name in references))
        case pb.SLOT_KIND_OPTIMISER | pb.SLOT_KIND_COUNTER | pb.SLOT_KIND_ACCUMULATOR:
            return zeros(slot)
        case pb.SLOT_KIND_HYPER:
            return torch.tensor(hyper[slot.name], dtype=torch.float32)
    if feed is None or slot.kind not in OF_BATCH:
        raise BundleUnusable(f"an input of kind {pb.SlotKind.Name(slot.kind)} is not known to this engine")
    return feed.tensor(slot)


def bound(slot: pb.Slot, references: References, optional: Sequence[str], shape: tuple[int, ...]) -> Array | None:
    """The tensor of a reference for a slot; None: the reference is optional, and not bound."""
    reference, _, name = slot.name.partition("/")
    if reference in references:
        return _checked(references[reference], name, f"reference {reference!r}", shape, slot.dtype)
    if reference not in optional:
        raise BadInput(f"reference {reference!r} is missing; the program needs it")
    return None


def zeros(slot: pb.Slot) -> Tensor:
    """A tensor of zeros for a slot."""
    return torch.zeros(tuple(slot.shape), dtype=DTYPES[slot.dtype])


def tensor(slot: pb.Slot, tensors: Mapping[str, Array], where: str) -> Tensor:
    """A copy of the tensor for a slot; errors as in `check_array`."""
    return copied(_checked(tensors, slot.name, where, tuple(slot.shape), slot.dtype))


def _checked(
    tensors: Mapping[str, Array], name: str, where: str, shape: tuple[int, ...], dtype: blob_pb2.Dtype
) -> Array:
    if name not in tensors:
        raise BadInput(f"tensor {name!r} is missing from {where}")
    array = tensors[name]
    check_array(f"tensor {name!r} of {where}", array, shape, dtype)
    return array


def copied(array: Array) -> Tensor:
    """A tensor in memory of its own: blobs are read-only, and callers may modify their arrays."""
    return torch.from_numpy(np.array(array, order="C"))


def check_array(what: str, array: Array, shape: Sequence[int], dtype: blob_pb2.Dtype) -> None:
    """Check the shape and dtype of an array; `what` starts the error's text.

    Raises:
        BadInput: The array does not match.
    """
    wanted = NUMPY[dtype]
    if tuple(array.shape) != tuple(shape) or array.dtype != wanted:
        raise BadInput(f"{what}: found {array.dtype}{list(array.shape)}, the bundle takes {wanted}{list(shape)}")
