"""Delta encoding: differences between sets of tensors, and the sums that undo them, computed when a tensor is read.

    difference = trained - base          is sent, as a blob that names the base blob in its header
    sum        = base + difference       is used by the receiver

In float32, or int64 modulo 2^64. Both sides hold the base, decoded from its blob. Losses of a codec do not add up over
rounds: the sum contains them, and the next difference is taken from that sum.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from fedlens_proto.errors import BlobError
from fedlens_proto.layout import Array


def subtract(trained: Array, base: Array) -> Array:
    """The difference of two arrays of one shape; infinite beyond float32's range."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.subtract(trained, base, dtype=_kind(base))


def add(base: Array, difference: Array, out: Array | None = None) -> Array:
    """The sum of two arrays of one shape, written to `out` if given; infinite beyond float32's range."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: Array = np.add(base, difference, out=out, dtype=_kind(base))
    return found


class _Combined(Mapping[str, Array]):
    """A result for each of some tensors and the base's tensor of that name."""

    def __init__(self, tensors: Mapping[str, Array], base: Mapping[str, Array]) -> None:
        self._tensors = tensors
        self._base = base

    def __iter__(self) -> Iterator[str]:
        """Names."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._tensors)


class Differences(_Combined):
    """`trained - base` for each tensor of `trained`; the base may hold more."""

    def __getitem__(self, name: str) -> Array:
        """One difference.

        Raises:
            BlobError: The base has no such tensor, or another shape or type.
        """
        trained = self._tensors[name]
        return subtract(trained, _like(trained, self._base, name))


class Sums(_Combined):
    """`base + difference` for each tensor of `differences`."""

    def __init__(self, base: Mapping[str, Array], differences: Mapping[str, Array]) -> None:
        """`base` may hold more tensors."""
        super().__init__(differences, base)

    def __getitem__(self, name: str) -> Array:
        """One sum.

        Raises:
            BlobError: The base has no such tensor, or another shape or type.
        """
        difference = self._tensors[name]
        return add(_like(difference, self._base, name), difference)


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
