"""Stored tensors by name, read only when asked for and only as far as asked for.

A file is mapped anew for each tensor and unmapped with the array, so that reading a round's updates never makes more
of them resident than what is being added up.
"""

import mmap
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from fedlens_proto.blob import Array, Layout
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import blob_pb2
from fedlens_server.store.blobs import Location

_NUMPY: dict[blob_pb2.Dtype, np.dtype[Any]] = {
    blob_pb2.DTYPE_FLOAT32: np.dtype("<f4"),
    blob_pb2.DTYPE_FLOAT16: np.dtype("<f2"),
    blob_pb2.DTYPE_INT64: np.dtype("<i8"),
}
_FIRST_READ = 64 << 10
_LONGEST_HEADER = (1 << 20) + 16


class StoredTensors(Mapping[str, Array]):
    """The tensors of a stored blob; float16 is widened to float32, all arrays are read-only or fresh."""

    def __init__(self, digest: bytes, size: int, locate: Callable[[bytes], Location]) -> None:
        """`locate` says where the bytes are, each time they are needed."""
        self.digest = digest
        self.size = size
        self._locate = locate
        self._layout: Layout | None = None
        self._index: dict[str, int] = {}

    @property
    def layout(self) -> Layout:
        """What the blob holds, and where.

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

    def __getitem__(self, name: str) -> Array:
        """One tensor."""
        spec = self.layout.specs[self._index[name]]
        return self.span(name, 0, prod(spec.shape)).reshape(spec.shape)

    def span(self, name: str, start: int, stop: int) -> Array:
        """Elements `start` to `stop` of a tensor in row-major order."""
        layout = self.layout
        i = self._index[name]
        spec = layout.specs[i]
        dtype = _NUMPY[spec.dtype]
        offset = layout.offsets[i] + start * dtype.itemsize
        location = self._locate(self.digest)
        if location.raw is not None:
            stored = np.frombuffer(location.raw, dtype, stop - start, offset)
        else:
            assert location.path is not None
            page = offset - offset % mmap.ALLOCATIONGRANULARITY
            with location.path.open("rb", buffering=0) as file:
                length = offset - page + (stop - start) * dtype.itemsize
                mapped = mmap.mmap(
                    file.fileno(), length, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ, offset=page
                )
            stored = np.frombuffer(mapped, dtype, stop - start, offset - page)
        return stored.astype(np.float32) if spec.dtype == blob_pb2.DTYPE_FLOAT16 else stored

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of that name."""
        return self.layout is not None and name in self._index

    def __iter__(self) -> Iterator[str]:
        """Names, ascending."""
        return (spec.name for spec in self.layout.specs)

    def __len__(self) -> int:
        """How many tensors."""
        return len(self.layout.specs)


def _parse(location: Location) -> Layout | None:
    if location.raw is not None:
        return Layout.parse(location.raw)
    assert location.path is not None
    with location.path.open("rb") as file:
        start = file.read(_FIRST_READ)
        return Layout.parse(start) or Layout.parse(start + file.read(_LONGEST_HEADER - len(start)))
