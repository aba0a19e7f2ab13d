"""Encoding of computed tensors as a blob: any range of its bytes, piece by piece."""

from collections.abc import Iterator
from hashlib import sha256
from math import prod

import numpy as np

from fedlens_proto.blob import DTYPES, Layout
from fedlens_proto.errors import BlobError
from fedlens_server.store.blobs import ComputedTensors

PIECE = 1 << 18  # elements: 1 MiB of float32


def pieces(tensors: ComputedTensors, first: int = 0, last: int | None = None) -> Iterator[memoryview]:
    """Bytes `first` to `last` of the blob of these float32 and int64 tensors, at most `PIECE` elements at a time.

    Raises:
        BlobError: A tensor holds a NaN or an infinity.
    """
    layout = tensors.layout
    last = layout.size if last is None else min(last, layout.size)
    end = len(layout.prefix)
    yield from _cut(layout.prefix, 0, first, last)
    for i, (spec, offset) in enumerate(zip(layout.specs, layout.offsets, strict=True)):
        yield from _cut(bytes(offset - end), end, first, last)
        end = offset + spec.nbytes
        if offset < last and end > first:
            yield from _elements(tensors, layout, i, first, last)


def digest(tensors: ComputedTensors) -> bytes:
    """The SHA-256 of the blob of these tensors. Errors as in `pieces`."""
    hashed = sha256()
    for piece in pieces(tensors):
        hashed.update(piece)
    return hashed.digest()


def _elements(tensors: ComputedTensors, layout: Layout, i: int, first: int, last: int) -> Iterator[memoryview]:
    spec, offset = layout.specs[i], layout.offsets[i]
    dtype = DTYPES[spec.dtype]
    start = max(first - offset, 0) // dtype.itemsize
    stop = min(-(-(last - offset) // dtype.itemsize), prod(spec.shape))
    for a in range(start, stop, PIECE):
        b = min(a + PIECE, stop)
        values = np.ascontiguousarray(tensors.span(spec.name, a, b), dtype)
        if dtype.kind == "f" and not np.isfinite(values).all():
            raise BlobError(f"tensor {spec.name!r} holds a NaN or an infinity")
        yield from _cut(values.data.cast("B"), offset + a * dtype.itemsize, first, last)


def _cut(raw: bytes | memoryview, position: int, first: int, last: int) -> Iterator[memoryview]:
    """The part of these bytes, which start at `position`, that lies between `first` and `last`."""
    part = memoryview(raw)[max(first - position, 0) : max(last - position, 0)]
    if part:
        yield part
