"""Sums over clients of a set that each client has in the state, such as FedDyn's duals and SCAFFOLD's control variates.

    here                 meaning
    clients[id][entry]   the set of a client, float32; a client without one counts zeros
    shared[name]         their sum over all known clients, float32
    shared["counted"]    the number of clients in the sum

The sum is carried from round to round by the changes of the round's clients. When a client was forgotten, it is added
up anew, so that nothing of that client is left in it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from fedlens_proto.blob import Array
from fedlens_server.methods.arithmetic.linear_combination import LazyTensor, linear_combination
from fedlens_server.planning.method import State, TensorSet

COUNTED = "counted"


class Computed(Mapping[str, Array]):
    """Tensors that are computed each time they are read: the sets of a round's clients would not fit into memory."""

    def __init__(self, names: Iterable[str], compute: Callable[[str], Array]) -> None:
        """`compute` gives a tensor by name."""
        self._names, self._compute = tuple(names), compute

    def __getitem__(self, name: str) -> Array:
        """One tensor."""
        if name not in self._names:
            raise KeyError(name)
        return self._compute(name)

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._names)

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self._names)


def clients_of_mean(state: State, entry: str, others: Collection[bytes]) -> int:
    """The number of clients that the mean of a sum is over: `others`, and all that are in the sum.

    Of these some may take part no more, because they have done so often enough or are banned.
    """
    return len({*others, *(client for client, own in state.clients.items() if entry in own)})


def current_sum(state: State, name: str, entry: str) -> TensorSet:
    """The sum over the clients that are known now."""
    known: Mapping[str, Array] = state.shared[name]
    holders = [own[entry] for _, own in sorted(state.clients.items()) if entry in own]
    if len(holders) == state.shared[COUNTED]:
        return known
    weights = np.ones(len(holders))
    return {key: _added_up(holders, key, known[key], weights) for key in known}


def _added_up(holders: Sequence[TensorSet], name: str, like: Array, weights: np.ndarray) -> Array:
    if not holders:
        return np.zeros_like(like)
    return linear_combination([LazyTensor(each, name, like.shape, like.dtype) for each in holders], weights)
