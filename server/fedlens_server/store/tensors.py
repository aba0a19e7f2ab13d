"""Stored tensors by name; only the elements that are needed are read.

Files are read, not mapped: mappings of all updates of a round would become resident, and page faults cost more than
copies from the page cache into a buffer in the processor's cache.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any, Self

import numpy as np

from fedlens_proto import int8
from fedlens_proto.blob import DTYPES, MAX_HEADER_BYTES, PREFIX, Array, Layout
from fedlens_proto.difference import Sums, add
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import blob_pb2
from fedlens_server.errors import Unavailable
from fedlens_server.store.blobs import Location
from fedlens_server.store.dialects import AWAY_RETRY_MS
from fedlens_server.store.incoming import PendingBlob, opened

_FIRST_READ = 64 << 10


class StoredTensors(Mapping[str, Array]):
    """The tensors of a stored blob. float16 and int8 become float32; arrays are read-only or new."""

    def __init__(self, digest: bytes, size: int, locate: Callable[[bytes], Location]) -> None:
        """`locate` is called for every read."""
        self.digest = digest
        self.size = size
        self._locate = locate
        self._layout: Layout | None = None
        self._descriptor: int | None = None
        self._index: dict[str, int] = {}

    @classmethod
    def of_pending(cls, blob: PendingBlob) -> Self:
        """The tensors of a blob that waits for the transaction that stores it."""
        location = Location(blob.size, raw=blob.raw, path=blob.path)
        return cls(blob.digest, blob.size, lambda _: location)

    @property
    def layout(self) -> Layout:
        """The names, types, shapes and offsets of the tensors.

        Raises:
            BlobError: The bytes are no blob.
        """
        if self._layout is None:
            location = self._locate(self.digest)
            layout = _parse(location)
            if layout is None or layout.size != location.size:
                raise BlobError(f"blob {self.digest.hex()} is truncated or has bytes behind it")
            self._index = {spec.name: i for i, spec in enumerate(layout.specs)}
            self._layout = layout
        return self._layout

    def unopened(self) -> Self:
        """The same tensors, but each read opens the file anew, even while `opened` keeps it open here."""
        found = type(self)(self.digest, self.size, self._locate)
        found._index, found._layout = self._index, self._layout
        return found

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Keep the blob's file open, to read many spans; otherwise every read opens the file."""
        path = self._locate(self.digest).path
        if path is None:
            yield self
            return
        with ExitStack() as held:
            with _readable():
                self._descriptor = held.enter_context(opened(path))
            try:
                yield self
            finally:
                self._descriptor = None

    def __getitem__(self, name: str) -> Array:
        """One tensor."""
        spec = self.layout.specs[self._index[name]]
        return self.span(name, 0, prod(spec.shape)).reshape(spec.shape)

    def span(self, name: str, start: int, stop: int, buffer: Array | None = None) -> Array:
        """Elements `start` to `stop` of a tensor in row-major order.

        The result may be in `buffer`, float32 or int64 with room for all elements, which saves a new array.
        """
        layout = self.layout
        i = self._index[name]
        spec = layout.specs[i]
        dtype = DTYPES[spec.dtype]
        offset = layout.offsets[i]
        location = None if self._descriptor is not None else self._locate(self.digest)
        if location is not None and location.computed is not None:
            return location.computed.span(name, start, stop, buffer)
        if spec.dtype == blob_pb2.DTYPE_INT8:
            length = int8.columns(spec.shape)
            first, last = start // length, -(-stop // length)
            scales = self._elements(location, int8.SCALE, offset + first * int8.SCALE.itemsize, last - first)
            values = self._elements(location, dtype, offset + spec.scales * int8.SCALE.itemsize + start, stop - start)
            return int8.decode(scales, values, length, start % length, buffer)
        stored = self._elements(location, dtype, offset + start * dtype.itemsize, stop - start, buffer)
        return stored.astype(np.float32) if spec.dtype == blob_pb2.DTYPE_FLOAT16 else stored

    def __contains__(self, name: object) -> bool:
        """True if there is a tensor of that name."""
        return self.layout is not None and name in self._index

    def __iter__(self) -> Iterator[str]:
        """Names, ascending."""
        return (spec.name for spec in self.layout.specs)

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self.layout.specs)

    def _elements(
        self, location: Location | None, dtype: np.dtype[Any], offset: int, count: int, buffer: Array | None = None
    ) -> Array:
        """The stored elements from an offset; in `buffer` if they are read from a file and have its type."""
        if location is not None and location.raw is not None:
            return np.frombuffer(location.raw, dtype, count, offset)
        fits = buffer is not None and buffer.dtype == dtype
        stored = buffer[:count] if buffer is not None and fits else np.empty(count, dtype)
        self._read(location, stored, offset)
        return stored

    def _read(self, location: Location | None, into: Array, offset: int) -> None:
        with _readable():
            if self._descriptor is not None:
                _read(self._descriptor, into, offset)
                return
            assert location is not None and location.path is not None
            with opened(location.path) as descriptor:
                _read(descriptor, into, offset)


class RestoredTensors(Sums):
    """The tensors of a delta upload: the sum of a stored base and a stored difference."""

    def __init__(self, base: StoredTensors, differences: StoredTensors) -> None:
        """`base` may hold further tensors, and may be shared."""
        super().__init__(base, differences)
        self.base = base
        self.differences = differences

    def span(self, name: str, start: int, stop: int, buffer: Array | None = None) -> Array:
        """As `StoredTensors.span`; the base has the tensor in the same shape."""
        held = self.base.span(name, start, stop)
        difference = self.differences.span(name, start, stop, buffer)
        fits = buffer is not None and buffer.dtype == difference.dtype
        return add(held, difference, buffer[: stop - start] if buffer is not None and fits else None)


def _read(descriptor: int, into: Array, offset: int) -> None:
    """Fill an array with a file's bytes from an offset.

    Raises:
        BlobError: The file is too short.
    """
    left = into.data.cast("B")
    while (count := os.preadv(descriptor, [left], offset)) < len(left):
        if count == 0:
            raise BlobError(f"the blob's file is truncated: it ends before byte {offset + len(left)}")
        left, offset = left[count:], offset + count


@contextmanager
def _readable() -> Iterator[None]:
    """Turn an error of the disk into one after which the same is tried again; a file that is gone stays one."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unavailable(f"a stored blob cannot be read: {error.strerror}", AWAY_RETRY_MS) from error


def _parse(location: Location) -> Layout | None:
    if location.computed is not None:
        return location.computed.layout
    if location.raw is not None:
        return Layout.parse(location.raw)
    assert location.path is not None
    with _readable(), location.path.open("rb") as file:
        start = file.read(_FIRST_READ)
        return Layout.parse(start) or Layout.parse(start + file.read(PREFIX.size + MAX_HEADER_BYTES - len(start)))
