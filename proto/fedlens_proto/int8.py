"""The int8 codec: a float tensor of two or more dimensions as one float32 scale a row and one byte an element.

Each index of the first dimension selects a row. With m the largest |x| of a row, all in float32:

    scale = m / 127                                   0 for a row of zeros
    value = round(x / scale), half to even            within -127 .. 127; 0 where the scale is 0
    x'    = value * scale                             the decoded element

So |x - x'| is at most half a scale, and the largest element is exact up to rounding. The scales stand before the
values.
"""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.errors import BlobError

MOST = 127
SCALE = np.dtype("<f4")
_SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal
# A scale below the normal range is off by up to half the least number u > 0: m >= 127 scale - 63.5 u, scale >= u, so
# m / scale >= 63.5, which rounds to 64.
_LEAST_OF_SUBNORMAL = 64

Scales = NDArray[np.float32]
Values = NDArray[np.int8]


def columns(shape: tuple[int, ...]) -> int:
    """Elements of a row."""
    return prod(shape[1:])


def encode(tensor: NDArray[np.floating]) -> tuple[Scales, Values]:
    """Scales [rows] and values [rows, columns] of a finite float32 tensor of two or more dimensions, none empty.

    Raises:
        BlobError: An element is so large that its row would not decode to finite numbers.
    """
    rows = np.ascontiguousarray(tensor, np.float32).reshape(tensor.shape[0], -1)
    scales: Scales = np.maximum(rows.max(axis=1), -rows.min(axis=1)) / np.float32(MOST)
    scales += np.float32(0)  # -0 of a row of zeros becomes 0
    if not readable(scales):
        raise BlobError("an element is too large for int8")
    scaled = rows / np.where(scales == 0, np.float32(np.inf), scales)[:, None]
    np.rint(scaled, out=scaled)
    return scales, np.clip(scaled, -MOST, MOST, out=scaled).astype(np.int8)


def decode(
    scales: Scales, values: Values, row_length: int, first: int = 0, buffer: NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """The elements float32[n] of consecutive values in row-major order.

    Args:
        scales: Scales of all rows that the values belong to.
        values: int8[n].
        row_length: Elements of a row.
        first: Column of the first value.
        buffer: Reused for the result if it is float32 and has room.
    """
    fits = buffer is not None and buffer.dtype == np.float32
    found = buffer[: len(values)] if buffer is not None and fits else np.empty(len(values), np.float32)
    found[:] = values
    head = min(row_length - first, len(found)) if first else 0
    whole = (len(found) - head) // row_length
    if head:
        found[:head] *= scales[0]
        scales = scales[1:]
    middle = found[head : head + whole * row_length].reshape(whole, row_length)
    middle *= scales[:whole, None]
    if len(found) > head + whole * row_length:
        found[head + whole * row_length :] *= scales[whole]
    return found


def readable(scales: Scales) -> bool:
    """True if every value with these scales decodes to a finite element."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(scales * np.float32(MOST)).all())


class Check:
    """Checks, in pieces, that scales and values are a result of `encode`; holds one byte a row."""

    def __init__(self, row_length: int) -> None:
        """Check a tensor with this many elements a row."""
        self._row_length = row_length
        self._largest = bytearray()  # by row, the least size of its largest value; 0: exactly 0
        self._row = 0
        self._column = 0
        self._found = 0

    def scales(self, piece: Scales) -> str | None:
        """Check the next scales; returns their fault, or None."""
        if not readable(piece):
            return "has a scale that is a NaN, an infinity or too large"
        if np.signbit(piece).any():
            return "has a negative scale"
        least = np.where(piece >= _SMALLEST_NORMAL, MOST, _LEAST_OF_SUBNORMAL)
        self._largest += np.where(piece == 0, 0, least).astype(np.uint8).tobytes()
        return None

    def values(self, piece: Values) -> str | None:
        """Check the next values, after all scales; returns their fault, or None."""
        if (piece < -MOST).any():
            return "holds -128"
        sizes = np.abs(piece)
        # Places in the piece where rows begin; the first row may have begun before. A row's length may exceed int64.
        first, step = (min(length, len(piece)) for length in (self._row_length - self._column, self._row_length))
        starts = np.arange(first, len(piece), step)
        largest = np.maximum.reduceat(sizes, np.concatenate([np.zeros(1, np.int64), starts]))
        largest[0] = max(int(largest[0]), self._found)
        end = self._column + len(piece)
        self._column, complete = end % self._row_length, end // self._row_length
        self._found = int(largest[-1]) if self._column else 0
        wanted = np.frombuffer(self._largest, np.uint8, complete, self._row)
        self._row += complete
        if ((largest[:complete] < wanted) | (largest[:complete] > 0) & (wanted == 0)).any():
            return f"has a row whose values are not what its scale gives, up to row {self._row - 1}"
        return None
