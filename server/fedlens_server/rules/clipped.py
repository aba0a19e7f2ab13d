"""Uploaded weights with their change made smaller, computed as they are read."""

from collections.abc import Iterator, Mapping

import numpy as np

from fedlens_proto.blob import Array
from fedlens_server.planning.method import TensorSet, span

_LEAST_IN_FLOAT32 = 1e-6  # factors below it are of changes that may overflow float32


class ClippedTensors(Mapping[str, Array]):
    """`base + factor * (uploaded - base)` for each tensor with a base and a factor; the others as uploaded."""

    def __init__(
        self,
        uploaded: TensorSet,
        bases: Mapping[str, TensorSet],
        factors: Mapping[str, float],
        instead: Mapping[str, Array],
    ) -> None:
        """Scale changes.

        Args:
            uploaded: The client's weights.
            bases: By tensor the set that its change is to.
            factors: By tensor, 0 to 1; left out: 1.
            instead: Tensors that replace uploaded ones.
        """
        self._uploaded = uploaded
        self._bases = bases
        self._factors = factors
        self._instead = instead

    def __getitem__(self, name: str) -> Array:
        """One tensor, float32 if it is scaled."""
        if name in self._instead:
            return self._instead[name]
        whole = self._uploaded[name]
        if self._factors.get(name, 1.0) == 1.0:
            return whole
        return self._scaled(name, whole.reshape(-1).copy(), 0, whole.size).reshape(whole.shape)

    def span(self, name: str, start: int, stop: int, buffer: Array | None = None) -> Array:
        """Elements `start` to `stop` of a tensor in row-major order, possibly in `buffer`."""
        if name in self._instead:
            return self._instead[name].reshape(-1)[start:stop]
        values = span(self._uploaded, name, start, stop, buffer)
        if self._factors.get(name, 1.0) == 1.0:
            return values
        mine = buffer is not None and np.shares_memory(values, buffer) and values.dtype == np.float32
        return self._scaled(name, values if mine else values.astype(np.float32), start, stop)

    def __iter__(self) -> Iterator[str]:
        """Names, as uploaded."""
        return iter(self._uploaded)

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self._uploaded)

    def _scaled(self, name: str, values: Array, start: int, stop: int) -> Array:
        """The values with their change scaled, in place where that is exact enough."""
        factor, base = self._factors[name], span(self._bases[name], name, start, stop)
        if factor < _LEAST_IN_FLOAT32:
            return ((values.astype(np.float64) - base) * factor + base).astype(np.float32)
        values -= base
        values *= np.float32(factor)
        values += base
        return values
