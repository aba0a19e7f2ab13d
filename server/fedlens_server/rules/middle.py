"""The updates of a round as one, of each coordinate's middle values: `median` and `trimmed_mean`.

Paper: Yin, Chen, Ramchandran, Bartlett, ICML 2018, https://arxiv.org/abs/1803.01498, Definitions 1 and 2.

    paper    here      meaning
    beta     share     what is left out of the values of a coordinate at each end
    m        sets      clients that trained on photos, each counting alike

The median is the trimmed mean that leaves out as many as leave one or two. Integers take the lower one of the middle.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from fedlens_proto.blob import Array
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import NothingToAggregate, TensorSet, Update, span

_ROOM = 1 << 20  # elements of all clients that are in memory at a time
_LEAST = 1 << 10  # of one client
Comparator = tuple[int, int, bool, bool]


def middle_update(updates: Sequence[Update], left_out: Callable[[int], int]) -> Update:
    """An update of no client that holds the middle of what clients uploaded, read and computed lazily.

    Args:
        updates: Of clients that were all sent the same; those without photos do not count.
        left_out: The number of values left out at each end of so many, as `TaskSettings.left_out`.

    Raises:
        NothingToAggregate: No client trained on any photo.
    """
    counted = [update for update in updates if update.num_examples > 0]
    if not counted:
        raise NothingToAggregate("no client trained on any photo")
    return Update(
        client=b"",
        num_examples=sum(update.num_examples for update in counted),
        values={WEIGHTS: MiddleTensors([update.values[WEIGHTS] for update in counted], left_out(len(counted)))},
        sent=counted[0].sent,
    )


class MiddleTensors(Mapping[str, Array]):
    """By coordinate the mean of the values of several sets without the least and the greatest."""

    def __init__(self, sets: Sequence[TensorSet], cut: int) -> None:
        """`cut` values are left out at each end; one at least is left."""
        self._sets = sets
        self._cut = cut

    def __getitem__(self, name: str) -> Array:
        """One tensor."""
        like = self._sets[0][name]
        return self.span(name, 0, like.size).reshape(like.shape)

    def span(self, name: str, start: int, stop: int, buffer: Array | None = None) -> Array:
        """Elements `start` to `stop` of a tensor in row-major order."""
        step = max(_ROOM // len(self._sets), _LEAST)
        spans = [self._span(name, a, min(a + step, stop)) for a in range(start, stop, step)]
        return np.concatenate(spans) if spans else span(self._sets[0], name, start, stop, buffer)

    def __iter__(self) -> Iterator[str]:
        """Names, as uploaded."""
        return iter(self._sets[0])

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self._sets[0])

    def _span(self, name: str, start: int, stop: int) -> Array:
        first = span(self._sets[0], name, start, stop)
        rows = np.empty((len(self._sets), stop - start), first.dtype)
        rows[0] = first
        for row, tensors in zip(rows[1:], self._sets[1:], strict=True):
            found = span(tensors, name, start, stop, row)
            if not np.may_share_memory(found, row):
                row[:] = found
        middle = _sorted(list(rows), self._cut)
        if first.dtype.kind == "i":
            return middle[0]
        total = np.zeros(stop - start)
        for row in middle:
            total += row
        return (total / len(middle)).astype(np.float32)


def _sorted(rows: list[Array], cut: int) -> list[Array]:
    """The rows sorted at each coordinate, without `cut` at each end; their memory is used.

    A network of comparisons works on whole rows at once, many times as fast as a sort at each coordinate.
    """
    spare = np.empty_like(rows[0])
    for a, b, needs_least, needs_greatest in _network(len(rows), cut):
        if needs_least and needs_greatest:
            np.minimum(rows[a], rows[b], out=spare)
            np.maximum(rows[a], rows[b], out=rows[b])
            rows[a], spare = spare, rows[a]
        elif needs_least:
            np.minimum(rows[a], rows[b], out=rows[a])
        else:
            np.maximum(rows[a], rows[b], out=rows[b])
    return rows[cut : len(rows) - cut]


@cache
def _network(n: int, cut: int) -> tuple[Comparator, ...]:
    """Pairs of rows to compare, and which of the two results is used: what the rows between the cuts need."""
    needed = set(range(cut, n - cut))
    found: list[Comparator] = []
    for a, b in reversed(list(_comparisons(n))):
        if a in needed or b in needed:
            found.append((a, b, a in needed, b in needed))
            needed |= {a, b}
    return tuple(reversed(found))


def _comparisons(n: int) -> Iterable[tuple[int, int]]:
    """Batcher's odd-even merge sort (AFIPS 1968; Knuth, volume 3, algorithm 5.2.2 M)."""
    size = 1
    while size < n:
        step = size
        while step:
            for first in range(step % size, n - step, 2 * step):
                for a in range(first, min(first + step, n - step)):
                    if a // (2 * size) == (a + step) // (2 * size):
                        yield a, a + step
            step //= 2
        size *= 2
