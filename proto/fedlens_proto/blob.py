r"""Named tensors to bytes and back; one content has exactly one encoding.

    offset  bytes  content
    0       8      magic "FEDLENS\0"
    8       4      version, u32, now 1
    12      4      header length h, u32
    16      h      BlobHeader (protobuf, fields in order, no unknown ones)
    ...            each tensor at the next multiple of 64 bytes, zeros between, nothing behind the last one

Numbers are little-endian. Tensors are sorted by the UTF-8 bytes of their names; a reader computes the
offsets, so no field of the header can point outside. The SHA-256 of the whole is the blob's name.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedlens_proto.errors import BlobError
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
    pb.DTYPE_INT64: np.dtype("<i8"),
}

Array = NDArray[Any]  # float32 or int64; what a blob holds


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, stored type and shape of one tensor."""

    name: str
    dtype: pb.Dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Stored size, without padding."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        """As in an error message: `fc.weight float32[10, 512]`."""
        return f"{self.name} {pb.Dtype.Name(self.dtype)[6:].lower()}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything stands in a blob with these tensors."""

    header: bytes
    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    size: int
    base: bytes | None

    @classmethod
    def of(cls, specs: Iterable[TensorSpec], base: bytes | None = None) -> Self:
        """The layout of these tensors in any order.

        Raises:
            BlobError: A name is used twice or not allowed, a dtype unknown, a dimension zero or one too many.
        """
        given = list(specs)
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
        return cls(header=header, specs=ordered, offsets=tuple(offsets), size=end, base=base)

    @classmethod
    def parse(cls, start: bytes | bytearray) -> Self | None:
        """Read the layout from the first bytes of a blob; None if more bytes are needed.

        Raises:
            BlobError: These bytes cannot start a blob.
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


class Blob(Mapping[str, Array]):
    """Tensors by name, read when asked for; float16 is widened to float32, float32 and int64 are views."""

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
        """Map a blob's file into memory, checking header and size only; `digest` is trusted where given.

        Raises:
            BlobError: The file is no blob, or its size is not what the header says.
        """
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < PREFIX.size:
                raise BlobError(f"a blob has at least {PREFIX.size} bytes, found {size}")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        layout = Layout.parse(mapped[: PREFIX.size + MAX_HEADER_BYTES])
        if layout is None or layout.size != size:
            raise BlobError(f"blob truncated or with bytes behind it: {size} bytes found")
        return cls(mapped, layout, digest)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the whole blob: its name."""
        if self._digest is None:
            self._digest = sha256(self._buffer).digest()
        return self._digest

    @property
    def size(self) -> int:
        """Bytes of the whole blob."""
        return self.layout.size

    @property
    def raw(self) -> memoryview:
        """The encoded bytes."""
        return memoryview(self._buffer)

    def __getitem__(self, name: str) -> Array:
        """One tensor, read-only."""
        i = self._index[name]
        spec = self.layout.specs[i]
        flat = np.frombuffer(self._buffer, DTYPES[spec.dtype], prod(spec.shape), self.layout.offsets[i])
        stored = flat.reshape(spec.shape)
        return stored.astype(np.float32) if spec.dtype == pb.DTYPE_FLOAT16 else stored

    def __iter__(self) -> Iterator[str]:
        """Names, ascending."""
        return iter(self._index)

    def __len__(self) -> int:
        """How many tensors."""
        return len(self._index)


class Checker:
    """Checks a blob while it arrives, without holding it: header, length, padding, finiteness, digest."""

    def __init__(self, expected: Sequence[TensorSpec] | None = None, base: bytes | None = None) -> None:
        """`expected`, where given, is the exact list of tensors; with `base`, differences from that blob."""
        self._expected = None if expected is None else _expected_layout(tuple(expected), base)
        self._layout: Layout | None = None
        self._pending = bytearray()
        self._position = 0
        self._tensor = 0
        self._hash = sha256()

    def feed(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises:
            BlobError: With these bytes it cannot become a valid, expected blob.
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
        """The layout of the blob, after its last byte.

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
        # One content has one header, so an equal one need not be read again.
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
                run, data = self._whole_elements(spec, start + spec.nbytes - self._position, data)
                dtype = DTYPES[spec.dtype]
                if dtype.kind == "f" and not np.isfinite(np.frombuffer(run, dtype)).all():
                    raise BlobError(f"tensor {spec.name!r} holds a NaN or an infinity")
            self._position += len(run)
            if self._position == start + spec.nbytes:
                self._tensor += 1

    def _whole_elements(self, spec: TensorSpec, left: int, data: memoryview) -> tuple[memoryview, memoryview]:
        """What can be checked now, and the rest; an element cut in two by the chunks is put together here."""
        itemsize = DTYPES[spec.dtype].itemsize
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


def encode(tensors: Mapping[str, Array], *, floats: pb.Dtype = pb.DTYPE_FLOAT32, base: bytes | None = None) -> bytes:
    """The blob of these tensors; float tensors are stored as `floats`, integers as int64.

    Raises:
        BlobError: A NaN or an infinity (float16: also a value above 65504), or a name or type that is not allowed.
    """
    stream = BytesIO()
    write(stream, tensors, floats=floats, base=base)
    return stream.getvalue()


def write(
    stream: BinaryIO, tensors: Mapping[str, Array], *, floats: pb.Dtype = pb.DTYPE_FLOAT32, base: bytes | None = None
) -> tuple[bytes, Layout]:
    """Write the blob of these tensors one by one; gives its digest and layout. Errors as in `encode`."""
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
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(tensors[spec.name], DTYPES[spec.dtype])
        if stored.dtype.kind == "f" and not np.isfinite(stored).all():
            raise BlobError(f"tensor {spec.name!r} holds a NaN, an infinity or a value too large for {spec}")
        put(stored.data.cast("B"))
        position = offset + spec.nbytes
    return digest.digest(), layout


def specs_of(tensors: Mapping[str, Array], floats: pb.Dtype = pb.DTYPE_FLOAT32) -> list[TensorSpec]:
    """How these tensors are stored when floats are stored as `floats`.

    Raises:
        BlobError: A tensor is neither float nor int64.
    """
    if floats not in (pb.DTYPE_FLOAT32, pb.DTYPE_FLOAT16):
        raise BlobError(f"codec {pb.Dtype.Name(floats)} is not supported by this version")
    specs = []
    for name, value in tensors.items():
        if value.dtype.kind != "f" and value.dtype != np.int64:
            raise BlobError(f"tensor {name!r} has dtype {value.dtype}; float and int64 can be stored")
        specs.append(TensorSpec(name, floats if value.dtype.kind == "f" else pb.DTYPE_INT64, value.shape))
    return specs


@lru_cache(maxsize=16)
def _expected_layout(specs: tuple[TensorSpec, ...], base: bytes | None) -> Layout:
    return Layout.of(specs, base)


def _check_spec(spec: TensorSpec) -> None:
    name = spec.name
    if not name.isprintable() or not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise BlobError(f"tensor name {name[:40]!r} is empty, longer than {MAX_NAME_BYTES} bytes or not printable")
    if spec.dtype not in DTYPES:
        raise BlobError(f"tensor {name!r} has dtype {spec.dtype}, which this version does not read")
    if len(spec.shape) > MAX_DIMENSIONS:
        raise BlobError(f"tensor {name!r} has {len(spec.shape)} dimensions; at most {MAX_DIMENSIONS} are allowed")
    if 0 in spec.shape:
        raise BlobError(f"tensor {name!r} has an empty dimension: {list(spec.shape)}")
