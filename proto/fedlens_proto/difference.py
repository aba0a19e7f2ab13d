"""Differences between sets of tensors, and sums that undo them; computed when a tensor is read.

    difference = trained - base          travels, as a blob that names the base blob in its header
    sum        = base + difference       is what the other side uses

In float32, or int64 modulo 2^64. The base is what both sides hold, decoded from its blob; so whatever a codec loses of
a difference is in the sum, the next difference is taken to that sum, and losses do not add up over rounds.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from fedlens_proto.errors import BlobError
from fedlens_proto.layout import Array


def subtract(trained: Array, base: Array) -> Array:
    """The difference of two arrays of one shape; infinite where float32 ends."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.subtract(trained, base, dtype=_kind(base))


def add(base: Array, difference: Array, out: Array | None = None) -> Array:
    """The sum of two arrays of one shape, put into `out` where it is given; infinite where float32 ends."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: Array = np.add(base, difference, out=out, dtype=_kind(base))
    return found


class Differences(Mapping[str, Array]):
    """`trained - base` for each tensor of `trained`."""

    def __init__(self, trained: Mapping[str, Array], base: Mapping[str, Array]) -> None:
        """`base` may hold more tensors."""
        self._trained = trained
        self._base = base

    def __getitem__(self, name: str) -> Array:
        """One difference.

        Raises:
            BlobError: The base has no such tensor, or another shape or type.
        """
        trained = self._trained[name]
        return subtract(trained, _like(trained, self._base, name))

    def __iter__(self) -> Iterator[str]:
        """Names."""
        return iter(self._trained)

    def __len__(self) -> int:
        """How many tensors."""
        return len(self._trained)


class Sums(Mapping[str, Array]):
    """`base + difference` for each tensor of `differences`."""

    def __init__(self, base: Mapping[str, Array], differences: Mapping[str, Array]) -> None:
        """`base` may hold more tensors."""
        self._base = base
        self._differences = differences

    def __getitem__(self, name: str) -> Array:
        """One sum.

        Raises:
            BlobError: The base has no such tensor, or another shape or type.
        """
        difference = self._differences[name]
        return add(_like(difference, self._base, name), difference)

    def __iter__(self) -> Iterator[str]:
        """Names."""
        return iter(self._differences)

    def __len__(self) -> int:
        """How many tensors."""
        return len(self._differences)


def _kind(array: Array) -> np.dtype[np.float32] | np.dtype[np.int64]:
    return np.dtype(np.float32) if array.dtype.kind == "f" else np.dtype(np.int64)


def _like(tensor: Array, base: Mapping[str, Array], name: str) -> Array:
    if name not in base:
        raise BlobError(f"the base of a difference has no tensor {name!r}")
    found = base[name]
    if found.shape != tensor.shape or _kind(found) != _kind(tensor):
        raise BlobError(
            f"tensor {name!r} is {tensor.dtype}{list(tensor.shape)}, in the base {found.dtype}{list(found.shape)}"
        )
    return found
