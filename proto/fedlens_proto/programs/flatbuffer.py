"""Reading FlatBuffers of others, field by field, so that no offset leads outside of the bytes.

A table names its fields by number, in the order of the schema; an absent one has its default. Only what is asked for is
looked at. Format: https://flatbuffers.dev/internals.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, Self

from fedlens_proto.errors import ProtoError

_U8, _I16, _U16 = struct.Struct("<B"), struct.Struct("<h"), struct.Struct("<H")
_I32, _U32, _I64, _U64 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<Q")
NUMBERS = {"u8": _U8, "i16": _I16, "u16": _U16, "i32": _I32, "u32": _U32, "i64": _I64, "u64": _U64}
"""Types of numbers, little-endian."""

MAX_TABLES = 1 << 16
"""More than any vector of ours has. What one vector points to may overlap, so its length bounds the work."""

MAX_TEXT_BYTES = 1 << 10

_FIRST_FIELD = 4  # bytes of a vtable before the offsets of fields: its own size and the table's


class FlatbufferError(ProtoError):
    """Bytes that are no FlatBuffer of the expected schema."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table: the bytes that it is in, and where it begins."""

    raw: bytes
    position: int

    @classmethod
    def root(cls, raw: bytes, identifier: bytes) -> Self:
        """The outermost table.

        Args:
            raw: All of the buffer.
            identifier: The four bytes by which the schema is known.

        Raises:
            FlatbufferError: The bytes begin otherwise.
        """
        if raw[4:8] != identifier:
            raise FlatbufferError(f"it begins with {raw[4:8]!r} where {identifier!r} is expected")
        return cls(raw, _number(raw, 0, _U32))

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """A field that is a number of `NUMBERS`."""
        at = self._field(field)
        return default if at is None else _number(self.raw, at, NUMBERS[kind])

    def table(self, field: int) -> "Table | None":
        """A field that is a table."""
        at = self._target(field)
        return None if at is None else Table(self.raw, at)

    def text(self, field: int) -> str:
        """A field that is a string; what is no UTF-8 is replaced."""
        found = self._vector(field, 1)
        if found is None:
            return ""
        start, count = found
        if count > MAX_TEXT_BYTES:
            raise FlatbufferError(f"a text of {count} bytes; at most {MAX_TEXT_BYTES} are allowed")
        return self.raw[start : start + count].decode("utf-8", "replace")

    def bytes(self, field: int) -> bytes:
        """A field that is a vector of bytes."""
        found = self._vector(field, 1)
        return b"" if found is None else self.raw[found[0] : found[0] + found[1]]

    def numbers(self, field: int, kind: str) -> list[int]:
        """A field that is a vector of numbers of `NUMBERS`."""
        form = NUMBERS[kind]
        found = self._vector(field, form.size)
        if found is None:
            return []
        start, count = found
        return [value for (value,) in form.iter_unpack(self.raw[start : start + count * form.size])]

    def tables(self, field: int) -> Iterator["Table"]:
        """A field that is a vector of tables."""
        found = self._vector(field, 4)
        if found is not None:
            start, count = found
            if count > MAX_TABLES:
                raise FlatbufferError(f"a list of {count} tables; at most {MAX_TABLES} are allowed")
            for at in range(start, start + 4 * count, 4):
                yield Table(self.raw, at + _number(self.raw, at, _U32))

    def union(self, field: int) -> tuple[int, "Table | None"]:
        """A field that is a union, by the number of its type, behind which it stands itself; type 0: nothing."""
        return self.number(field, "u8"), self.table(field + 1)

    def _field(self, field: int) -> int | None:
        """Where a field stands; None: it is absent."""
        vtable = self.position - _number(self.raw, self.position, _I32)
        offset_at = _FIRST_FIELD + 2 * field
        if offset_at + 2 > _number(self.raw, vtable, _U16):
            return None
        offset = _number(self.raw, vtable + offset_at, _U16)
        return self.position + offset if offset else None

    def _target(self, field: int) -> int | None:
        at = self._field(field)
        return None if at is None else at + _number(self.raw, at, _U32)

    def _vector(self, field: int, size: int) -> tuple[int, int] | None:
        """Where the first element stands, and how many there are."""
        at = self._target(field)
        if at is None:
            return None
        count = _number(self.raw, at, _U32)
        if at + 4 + count * size > len(self.raw):
            _outside(at)
        return at + 4, count


def _number(raw: bytes, at: int, form: struct.Struct) -> int:
    if at < 0 or at + form.size > len(raw):
        _outside(at)
    found: int = form.unpack_from(raw, at)[0]
    return found


def _outside(at: int) -> NoReturn:
    raise FlatbufferError(f"an offset at {at} leads outside of the bytes")
