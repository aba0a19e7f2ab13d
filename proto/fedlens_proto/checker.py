"""Validation of a blob while it arrives in pieces of any size, without holding it."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_proto import int8
from fedlens_proto.errors import BlobError
from fedlens_proto.layout import DTYPES, MAX_HEADER_BYTES, PREFIX, Layout, TensorSpec
from fedlens_proto.v1 import blob_pb2 as pb


class Checker:
    """Checks header, length, padding and finite values of a blob while it arrives, and computes its digest."""

    def __init__(self, expected: Sequence[TensorSpec] | None = None, base: bytes | None = None) -> None:
        """Accept any blob, or exactly the tensors `expected`, or with `base` their differences from that blob."""
        self._expected = None if expected is None else _expected_layout(tuple(expected), base)
        self._layout: Layout | None = None
        self._pending = bytearray()
        self._position = 0
        self._tensor = 0
        self._int8: int8.Check | None = None  # for the current tensor
        self._hash = sha256()

    def feed(self, chunk: bytes | memoryview) -> None:
        """Check the next bytes.

        Raises:
            BlobError: No valid, expected blob begins with the bytes so far.
        """
        data = memoryview(chunk)
        self._hash.update(data)
        if self._layout is None:
            before = len(self._pending)
            self._pending += data[: PREFIX.size + MAX_HEADER_BYTES - before]
            self._layout = self._read_header()
            if self._layout is None:
                return
            self._pending.clear()
            self._position = len(self._layout.prefix)
            data = data[self._position - before :]
        self._check_data(self._layout, data)

    def finish(self) -> Layout:
        """Check that the blob is complete; returns its layout.

        Raises:
            BlobError: Bytes are missing.
        """
        if self._layout is None:
            raise BlobError("blob truncated inside its header")
        found = self._position + len(self._pending)
        if found != self._layout.size:
            raise BlobError(f"blob truncated: {found} bytes found, its header says {self._layout.size}")
        return self._layout

    @property
    def digest(self) -> bytes:
        """SHA-256 of the bytes so far."""
        return self._hash.digest()

    def _read_header(self) -> Layout | None:
        expected = self._expected
        # One content has one header, so an equal header need not be parsed again.
        if expected is not None and self._pending.startswith(expected.prefix):
            return expected
        found = Layout.parse(self._pending)
        if found is not None and expected is not None:
            self._compare(found, expected)
        return found

    def _compare(self, found: Layout, expected: Layout) -> None:
        if found.base != expected.base:
            raise BlobError("the blob's base is not the expected one (weights or a difference were expected)")
        wanted, given = {s.name: s for s in expected.specs}, {s.name: s for s in found.specs}
        if missing := sorted(wanted.keys() - given.keys()):
            raise BlobError(f"tensor {missing[0]!r} is missing")
        if extra := sorted(given.keys() - wanted.keys()):
            raise BlobError(f"tensor {extra[0]!r} was not asked for")
        wrong = next(given[name] for name in wanted if given[name] != wanted[name])
        raise BlobError(f"tensor {wrong} found where {wanted[wrong.name]} was expected")

    def _check_data(self, layout: Layout, data: memoryview) -> None:
        if self._position + len(self._pending) + len(data) > layout.size:
            raise BlobError(f"bytes behind the end of the blob, which its header puts at {layout.size}")
        while data:
            spec, start = layout.specs[self._tensor], layout.offsets[self._tensor]
            if self._position < start:
                run = data[: start - self._position]
                if any(run):
                    raise BlobError(f"padding before tensor {spec.name!r} is not zero")
                data = data[len(run) :]
            else:
                in_scales = self._position - start < spec.scales * int8.SCALE.itemsize
                end = start + (spec.scales * int8.SCALE.itemsize if in_scales else spec.nbytes)
                dtype = int8.SCALE if in_scales else DTYPES[spec.dtype]
                run, data = self._whole_elements(dtype.itemsize, end - self._position, data)
                if run and (fault := self._fault(spec, np.frombuffer(run, dtype))):
                    raise BlobError(f"tensor {spec.name!r} {fault}")
            self._position += len(run)
            if self._position == start + spec.nbytes:
                self._tensor += 1
                self._int8 = None

    def _fault(self, spec: TensorSpec, run: NDArray[Any]) -> str | None:
        """The fault of these elements or scales of a tensor; None if they are valid."""
        if spec.dtype == pb.DTYPE_INT8:
            self._int8 = self._int8 or int8.Check(int8.columns(spec.shape))
            return self._int8.scales(run) if run.dtype == int8.SCALE else self._int8.values(run)
        if run.dtype.kind == "f" and not np.isfinite(run).all():
            return "holds a NaN or an infinity"
        return None

    def _whole_elements(self, itemsize: int, left: int, data: memoryview) -> tuple[memoryview, memoryview]:
        """The bytes to check now, and the rest; an element divided between two chunks is joined."""
        if self._pending or len(data) < itemsize:
            missing = itemsize - len(self._pending)
            self._pending += data[:missing]
            if len(self._pending) < itemsize:
                return data[:0], data[:0]
            element = memoryview(bytes(self._pending))
            self._pending.clear()
            return element, data[missing:]
        take = min(left, len(data) // itemsize * itemsize)
        return data[:take], data[take:]


@lru_cache(maxsize=16)
def _expected_layout(specs: tuple[TensorSpec, ...], base: bytes | None) -> Layout:
    return Layout.of(specs, base)
