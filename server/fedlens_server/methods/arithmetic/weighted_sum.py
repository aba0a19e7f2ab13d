"""Tensor sets that are weighted sums of others, computed when they are read and stored nowhere.

    symbol  here                     meaning
    a_j     weight of a term         how much of set j goes in
    x_j     its tensor of that name  float of any width
    y       `weighted_sum[name]`          float32(sum_j float64(a_j) * float64(x_j)), terms added in the order given

A method gives one where each client downloads a mix of its own (pFedSim): with 1,000 clients, writing these mixes would
cost the disk as much again as the uploads do.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from fedlens_proto.blob import Array, Layout, TensorSpec
from fedlens_proto.v1 import blob_pb2
from fedlens_server.planning.method import TensorSet, span

Terms = Sequence[tuple[float, TensorSet]]
# 64 Ki elements: a term, its product and the sum stay in a core's L2 cache.
CHUNK = 1 << 16


class WeightedSum(Mapping[str, Array]):
    """By name, each tensor's terms; a single term of weight 1 hands its tensor on as it is, which integers need."""

    def __init__(self, terms: Mapping[str, Terms], stand_in: TensorSet | None = None) -> None:
        """Nothing is read before a tensor is asked for.

        Args:
            terms: For each tensor the weighted sets, at least one, that hold one of that name and of equal shape.
            stand_in: A stored set with the same tensors for a client that is told what to predict with while no round
                has it, and for which computing the weighted sum would be too dear. None: there is none.
        """
        self.terms = {name: tuple(terms[name]) for name in sorted(terms, key=str.encode)}
        self.stand_in = stand_in
        self._layout: Layout | None = None

    @property
    def layout(self) -> Layout:
        """Of its blob: floats are float32, integers int64.

        Raises:
            TypeError: An integer tensor has more than one term, or one of another weight than 1.
        """
        if self._layout is None:
            self._layout = Layout.of(self._specs())
        return self._layout

    def span(self, name: str, start: int, stop: int, buffer: Array | None = None) -> Array:
        """Elements `start` to `stop` of a tensor in row-major order, in memory bounded but for the result.

        They may be put into `buffer`, float32 or int64 with room for them all.
        """
        terms = self.terms[name]
        if _is_plain(terms):
            return span(terms[0][1], name, start, stop, buffer)
        count = stop - start
        fits = buffer is not None and buffer.dtype == np.float32
        result = buffer[:count] if buffer is not None and fits else np.empty(count, np.float32)
        room = min(CHUNK, count)
        total, product, read = np.empty(room), np.empty(room), np.empty(room, np.float32)
        for a in range(0, count, CHUNK):
            b = min(a + CHUNK, count)
            acc, term = total[: b - a], product[: b - a]
            acc.fill(0.0)
            for weight, tensors in terms:
                np.copyto(term, span(tensors, name, start + a, start + b, read))
                np.multiply(term, weight, out=term)
                np.add(acc, term, out=acc)
            result[a:b] = acc
        return result

    def __getitem__(self, name: str) -> Array:
        """One tensor."""
        terms = self.terms[name]
        if _is_plain(terms):
            return terms[0][1][name]
        shape = next(spec.shape for spec in self.layout.specs if spec.name == name)
        return self.span(name, 0, prod(shape)).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        """Names, ascending."""
        return iter(self.terms)

    def __len__(self) -> int:
        """How many tensors."""
        return len(self.terms)

    def _specs(self) -> list[TensorSpec]:
        known: dict[int, Mapping[str, tuple[tuple[int, ...], bool]]] = {}
        specs = []
        for name, terms in self.terms.items():
            source = terms[0][1]
            if id(source) not in known:
                known[id(source)] = _shapes(source)
            shape, is_float = known[id(source)][name]
            if not is_float and not _is_plain(terms):
                raise TypeError(f"tensor {name!r} holds integers, of which no weighted sum is taken")
            dtype = blob_pb2.DTYPE_FLOAT32 if is_float else blob_pb2.DTYPE_INT64
            specs.append(TensorSpec(name, dtype, shape))
        return specs


def _is_plain(terms: Terms) -> bool:
    return len(terms) == 1 and terms[0][0] == 1.0


def _shapes(tensors: TensorSet) -> Mapping[str, tuple[tuple[int, ...], bool]]:
    """By name shape and whether it holds floats; of stored sets without reading any tensor."""
    layout = getattr(tensors, "layout", None)
    if isinstance(layout, Layout):
        return {spec.name: (spec.shape, spec.dtype != blob_pb2.DTYPE_INT64) for spec in layout.specs}
    return {name: (value.shape, value.dtype.kind == "f") for name, value in tensors.items()}
