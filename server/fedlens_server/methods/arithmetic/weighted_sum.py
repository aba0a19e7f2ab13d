"""Tensor sets that are weighted sums of other sets, computed when they are read and not stored.

    symbol  here                     meaning
    a_j     weight of a term         weight of set j in the sum
    x_j     its tensor of that name  float of any width
    y       `weighted_sum[name]`     float32(sum_j float64(a_j) * float64(x_j)), terms added in the order given

A method gives such a set where each client downloads a sum of its own (pFedSim): with 1,000 clients, storing these sums
would need as much disk again as the uploads.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

import numpy as np

from fedlens_proto.blob import Array, Layout, TensorSpec
from fedlens_proto.v1 import blob_pb2
from fedlens_server.methods.arithmetic.linear_combination import LazyTensor, linear_combination
from fedlens_server.planning.method import TensorSet, span

Terms = Sequence[tuple[float, TensorSet]]
_FLOAT = np.dtype(np.float32)


class WeightedSum(Mapping[str, Array]):
    """The terms of each tensor, by name; a single term of weight 1 is passed on as it is, also for integers."""

    def __init__(self, terms: Mapping[str, Terms], advertised: TensorSet | None = None) -> None:
        """Nothing is read before a tensor is read.

        Args:
            terms: The weighted sets of each tensor, at least one; all hold a tensor of that name and of equal shape.
            advertised: A stored set with the same tensors, to advertise where computing the sum would be too
                expensive: to clients outside a round that check in for a model to predict with. None: there is none.
        """
        self.terms = {name: tuple(terms[name]) for name in sorted(terms, key=str.encode)}
        self.advertised = advertised

    @property
    def layout(self) -> Layout:
        """The layout of the set's blob: floats are float32, integers int64.

        Raises:
            TypeError: An integer tensor has several terms, or one whose weight is not 1.
        """
        return self._layout

    @cached_property
    def _layout(self) -> Layout:
        known: dict[int, Mapping[str, tuple[tuple[int, ...], bool]]] = {}
        specs = []
        for name, terms in self.terms.items():
            source = terms[0][1]
            if id(source) not in known:
                known[id(source)] = _shapes(source)
            shape, is_float = known[id(source)][name]
            if not is_float and not _is_plain(terms):
                raise TypeError(f"tensor {name!r} holds integers, which have no weighted sum")
            dtype = blob_pb2.DTYPE_FLOAT32 if is_float else blob_pb2.DTYPE_INT64
            specs.append(TensorSpec(name, dtype, shape))
        return Layout.of(specs)

    def span(self, name: str, start: int, stop: int, buffer: Array | None = None) -> Array:
        """Elements `start` to `stop` of a tensor in row-major order; they are read and added up in chunks.

        The result may be in `buffer`, float32 or int64 with room for all elements.
        """
        terms = self.terms[name]
        if _is_plain(terms):
            return span(terms[0][1], name, start, stop, buffer)
        spans = [LazyTensor(tensors, name, (stop - start,), _FLOAT, start) for _, tensors in terms]
        out = buffer if buffer is not None and buffer.dtype == _FLOAT else None
        # One thread: the callers are threads themselves, each with a weighted sum of its own.
        return linear_combination(spans, np.array([weight for weight, _ in terms]), out=out, threads=1)

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
        """The number of tensors."""
        return len(self.terms)


def _is_plain(terms: Terms) -> bool:
    return len(terms) == 1 and terms[0][0] == 1.0


def _shapes(tensors: TensorSet) -> Mapping[str, tuple[tuple[int, ...], bool]]:
    """Shape and float or not of each tensor, by name; reads no tensor of a stored set."""
    layout = getattr(tensors, "layout", None)
    if isinstance(layout, Layout):
        return {spec.name: (spec.shape, spec.dtype != blob_pb2.DTYPE_INT64) for spec in layout.specs}
    return {name: (value.shape, value.dtype.kind == "f") for name, value in tensors.items()}
