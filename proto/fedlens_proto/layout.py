"""The layout of a blob: names, types and shapes of its tensors, and the offsets that follow from them.

`blob` describes the format.
"""

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, Self

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedlens_proto import int8
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import assignment_pb2
from fedlens_proto.v1 import blob_pb2 as pb

MAGIC = b"FEDLENS\0"
VERSION = 1
ALIGNMENT = 64
MAX_HEADER_BYTES = 1 << 20
MAX_NAME_BYTES = 255
MAX_DIMENSIONS = 32
PREFIX = struct.Struct("<8sII")
DTYPES: dict[pb.Dtype, np.dtype[Any]] = {
    pb.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.DTYPE_FLOAT16: np.dtype("<f2"),
    pb.DTYPE_INT8: np.dtype("i1"),
    pb.DTYPE_INT64: np.dtype("<i8"),
}
# The stored type of float tensors for each codec of the wire.
FLOATS: dict[assignment_pb2.Codec, pb.Dtype] = {
    assignment_pb2.CODEC_FLOAT32: pb.DTYPE_FLOAT32,
    assignment_pb2.CODEC_FLOAT16: pb.DTYPE_FLOAT16,
    assignment_pb2.CODEC_INT8: pb.DTYPE_INT8,
}

# Control characters, line breaks, marks of text direction, and halves of surrogate pairs. Fixed numbers, because
# `str.isprintable` depends on the interpreter's version of Unicode.
_NOT_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

Array = NDArray[Any]  # float32 or int64, as in a blob


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, stored type and shape of one tensor."""

    name: str
    dtype: pb.Dtype
    shape: tuple[int, ...]

    @classmethod
    def of_float(cls, name: str, shape: tuple[int, ...], floats: pb.Dtype) -> Self:
        """A float tensor stored as `floats`; instead of int8, as float32 if it has fewer than two dimensions."""
        has_rows = floats != pb.DTYPE_INT8 or len(shape) > 1
        return cls(name, floats if has_rows else pb.DTYPE_FLOAT32, shape)

    @property
    def scales(self) -> int:
        """Number of scales before the elements."""
        return self.shape[0] if self.dtype == pb.DTYPE_INT8 else 0

    @property
    def nbytes(self) -> int:
        """Stored size, without padding."""
        return self.scales * int8.SCALE.itemsize + prod(self.shape) * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        """The text for errors: `fc.weight float32[10, 512]`."""
        return f"{self.name} {pb.Dtype.Name(self.dtype)[6:].lower()}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Header, tensors and offsets of a blob."""

    header: bytes
    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    size: int
    base: bytes | None

    @classmethod
    def of(cls, specs: Iterable[TensorSpec], base: bytes | None = None) -> "Layout":
        """The layout of these tensors, given in any order.

        Raises:
            BlobError: A name occurs twice or is not allowed, a dtype is unknown, a dimension is zero, or there are too
                many dimensions.
        """
        given = tuple(specs)
        return _kept(given, base) if len(given) <= _MOST_KEPT else _laid_out(given, base)

    @classmethod
    def parse(cls, start: bytes | bytearray) -> "Layout | None":
        """Read the layout from the first bytes of a blob; None if more bytes are needed.

        Raises:
            BlobError: No blob begins with these bytes.
        """
        magic = bytes(start[: len(MAGIC)])
        if not MAGIC.startswith(magic):
            raise BlobError(f"not a blob: it starts with {magic!r}, not with {MAGIC!r}")
        if len(start) < PREFIX.size:
            return None
        _, version, length = PREFIX.unpack_from(start)
        if version != VERSION:
            raise BlobError(f"blob version {version} is unknown; this program reads version {VERSION}")
        if length > MAX_HEADER_BYTES:
            raise BlobError(f"blob header of {length} bytes; at most {MAX_HEADER_BYTES} are allowed")
        if len(start) < PREFIX.size + length:
            return None
        header = bytes(start[PREFIX.size : PREFIX.size + length])
        try:
            message = pb.BlobHeader.FromString(header)
        except DecodeError as error:
            raise BlobError(f"the blob header is damaged: {error}") from error
        specs = [TensorSpec(t.name, t.dtype, tuple(t.shape)) for t in message.tensors]
        layout = cls.of(specs, message.base or None)
        if layout.header != header:
            raise BlobError("the blob header is not in its canonical form (order, unknown fields or encoding)")
        return layout

    @property
    def prefix(self) -> bytes:
        """Everything before the first tensor's padding."""
        return PREFIX.pack(MAGIC, VERSION, len(self.header)) + self.header


def _laid_out(given: tuple[TensorSpec, ...], base: bytes | None) -> Layout:
    for spec in given:
        _check_spec(spec)
    ordered = tuple(sorted(given, key=lambda spec: spec.name.encode()))
    for left, right in pairwise(ordered):
        if left.name == right.name:
            raise BlobError(f"tensor {left.name!r} occurs twice")
    if base is not None and len(base) != 32:
        raise BlobError(f"the digest of the base blob must have 32 bytes, found {len(base)}")
    message = pb.BlobHeader(
        tensors=[pb.BlobTensor(name=s.name, dtype=s.dtype, shape=s.shape) for s in ordered], base=base or b""
    )
    header = message.SerializeToString(deterministic=True)
    if len(header) > MAX_HEADER_BYTES:
        raise BlobError(f"the header needs {len(header)} bytes, at most {MAX_HEADER_BYTES} are allowed")
    end = PREFIX.size + len(header)
    offsets = []
    for spec in ordered:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        offsets.append(start)
        end = start + spec.nbytes
    return Layout(header=header, specs=ordered, offsets=tuple(offsets), size=end, base=base)


# A model has the same layout in every round and of every client. Anybody may send a header of 1 MiB, so large ones are
# not kept.
_MOST_KEPT = 256
_kept = lru_cache(maxsize=64)(_laid_out)


def is_printable(name: str) -> bool:
    """True if a name has no control character, and none that breaks lines or turns the direction of text."""
    return _NOT_IN_NAMES.search(name) is None


def _check_spec(spec: TensorSpec) -> None:
    name = spec.name
    if not is_printable(name) or not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise BlobError(f"tensor name {name[:40]!r} is empty, longer than {MAX_NAME_BYTES} bytes or not printable")
    if spec.dtype not in DTYPES:
        raise BlobError(f"tensor {name!r} has dtype {spec.dtype}, which this version does not read")
    if len(spec.shape) > MAX_DIMENSIONS:
        raise BlobError(f"tensor {name!r} has {len(spec.shape)} dimensions; at most {MAX_DIMENSIONS} are allowed")
    if spec.dtype == pb.DTYPE_INT8 and len(spec.shape) < 2:
        raise BlobError(f"tensor {name!r} is int8 of {len(spec.shape)} dimensions; it must have 2 or more")
    if 0 in spec.shape:
        raise BlobError(f"tensor {name!r} has an empty dimension: {list(spec.shape)}")
