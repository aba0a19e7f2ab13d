r"""Blobs: named tensors as bytes, with exactly one encoding for each content.

    offset  bytes  content
    0       8      magic "FEDLENS\0"
    8       4      version, u32, now 1
    12      4      header length h, u32
    16      h      BlobHeader (protobuf, fields in order, no unknown ones)
    ...            each tensor at the next multiple of 64 bytes, zeros between, nothing behind the last one

A tensor's data are its elements in row-major order; an int8 tensor has its scales before them, see `int8`. With `base`
in the header, the tensors are differences from the tensors of that blob, see `difference`.

Numbers are little-endian. Tensors are sorted by the UTF-8 bytes of their names. A reader computes the offsets, so no
field of the header can point outside. The blob's name is the SHA-256 of all its bytes.
"""

import mmap
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from io import BytesIO
from math import prod
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from fedlens_proto import int8
from fedlens_proto.checker import Checker
from fedlens_proto.errors import BlobError
from fedlens_proto.layout import DTYPES, FLOATS, MAX_HEADER_BYTES, PREFIX, Array, Layout, TensorSpec
from fedlens_proto.v1 import blob_pb2 as pb

__all__ = [
    "DTYPES",
    "FLOATS",
    "MAX_HEADER_BYTES",
    "PREFIX",
    "Array",
    "Blob",
    "Checker",
    "Layout",
    "TensorSpec",
    "encode",
    "specs_of",
    "write",
]


_BRIEF_HEADER = 16 << 10


class Blob(Mapping[str, Array]):
    """Tensors by name, read on access; float16 and int8 become float32, float32 and int64 are views of the bytes."""

    def __init__(self, buffer: bytes | mmap.mmap, layout: Layout, digest: bytes | None = None) -> None:
        """Use `from_bytes` or `open`."""
        self._buffer = buffer
        self.layout = layout
        self._index = {spec.name: i for i, spec in enumerate(layout.specs)}
        self._digest = digest

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read a blob, checking everything: header, size, padding, finiteness.

        Raises:
            BlobError: The bytes are no blob.
        """
        checker = Checker()
        checker.feed(raw)
        return cls(raw, checker.finish())

    @classmethod
    def open(cls, path: Path, digest: bytes | None = None) -> Self:
        """Map a blob's file into memory, checking header and size only; a given `digest` is trusted.

        Raises:
            BlobError: The file is no blob, or its size is not what the header says.
        """
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < PREFIX.size:
                raise BlobError(
                    f"a blob has at least {PREFIX.size} bytes, found {size}: "
                    f"the file is {'cut short' if size else 'empty'}, fetch or write it again"
                )
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # A slice is a copy, and few headers are long.
        layout = Layout.parse(mapped[:_BRIEF_HEADER]) or Layout.parse(mapped[: PREFIX.size + MAX_HEADER_BYTES])
        if layout is None or layout.size != size:
            raise BlobError(f"blob truncated or with bytes behind it: {size} bytes found")
        return cls(mapped, layout, digest)

    @classmethod
    def open_checked(cls, path: Path) -> Self:
        """Map a blob's file into memory after checking everything, as `from_bytes` does.

        Raises:
            BlobError: The file is no blob.
        """
        checker = Checker()
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                checker.feed(chunk)
        checker.finish()
        return cls.open(path, checker.digest)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the blob, which is its name."""
        if self._digest is None:
            self._digest = sha256(self._buffer).digest()
        return self._digest

    @property
    def size(self) -> int:
        """Size of the blob in bytes."""
        return self.layout.size

    @property
    def raw(self) -> memoryview:
        """The encoded bytes."""
        return memoryview(self._buffer)

    def __getitem__(self, name: str) -> Array:
        """One tensor, read-only."""
        i = self._index[name]
        spec = self.layout.specs[i]
        offset = self.layout.offsets[i]
        values = offset + spec.scales * int8.SCALE.itemsize
        flat = np.frombuffer(self._buffer, DTYPES[spec.dtype], prod(spec.shape), values)
        if spec.dtype == pb.DTYPE_INT8:
            scales = np.frombuffer(self._buffer, int8.SCALE, spec.scales, offset)
            return int8.decode(scales, flat, int8.columns(spec.shape)).reshape(spec.shape)
        stored = flat.reshape(spec.shape)
        return stored.astype(np.float32) if spec.dtype == pb.DTYPE_FLOAT16 else stored

    def __iter__(self) -> Iterator[str]:
        """Names, ascending."""
        return iter(self._index)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._index)


def encode(tensors: Mapping[str, Array], *, floats: pb.Dtype = pb.DTYPE_FLOAT32, base: bytes | None = None) -> bytes:
    """Encode tensors as a blob, floats as `floats` and integers as int64.

    Args:
        tensors: By name.
        floats: With int8, float tensors of fewer than two dimensions are stored as float32.
        base: SHA-256 of the blob from which these tensors are differences; None if they are none.

    Raises:
        BlobError: There is a NaN or an infinity (float16: also a value above 65504), or a name or type that is not
            allowed.
    """
    stream = BytesIO()
    write(stream, tensors, floats=floats, base=base)
    return stream.getvalue()


def write(
    stream: BinaryIO, tensors: Mapping[str, Array], *, floats: pb.Dtype = pb.DTYPE_FLOAT32, base: bytes | None = None
) -> tuple[bytes, Layout]:
    """Write a blob tensor by tensor; returns its digest and layout. Errors as in `encode`."""
    specs = specs_of(tensors, floats)
    layout = Layout.of(specs, base)
    digest = sha256()

    def put(raw: bytes | memoryview) -> None:
        digest.update(raw)
        stream.write(raw)

    put(layout.prefix)
    position = len(layout.prefix)
    for spec, offset in zip(layout.specs, layout.offsets, strict=True):
        put(bytes(offset - position))
        for piece in _stored(tensors[spec.name], spec):
            put(piece.data.cast("B"))
        position = offset + spec.nbytes
    return digest.digest(), layout


def specs_of(tensors: Mapping[str, Array], floats: pb.Dtype = pb.DTYPE_FLOAT32) -> list[TensorSpec]:
    """Names, stored types and shapes of tensors if floats are stored as `floats`.

    Raises:
        BlobError: A tensor is neither float nor int64.
    """
    if floats not in FLOATS.values():
        raise BlobError(f"{pb.Dtype.Name(floats)} cannot store floats")
    specs = []
    for name, value in tensors.items():
        if value.dtype.kind != "f" and value.dtype != np.int64:
            raise BlobError(f"tensor {name!r} has dtype {value.dtype}; float and int64 can be stored")
        if value.dtype.kind == "f":
            specs.append(TensorSpec.of_float(name, value.shape, floats))
        else:
            specs.append(TensorSpec(name, pb.DTYPE_INT64, value.shape))
    return specs


def _stored(tensor: Array, spec: TensorSpec) -> tuple[Array, ...]:
    kind = np.dtype(np.float32) if spec.dtype == pb.DTYPE_INT8 else DTYPES[spec.dtype]
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(tensor, kind)
    if kind.kind == "f" and not np.isfinite(stored).all():
        raise BlobError(f"tensor {spec.name!r} holds a NaN, an infinity or a value too large for {spec}")
    if spec.dtype != pb.DTYPE_INT8:
        return (stored,)
    try:
        return int8.encode(stored)
    except BlobError as error:
        raise BlobError(f"tensor {spec.name!r}: {error}") from error
