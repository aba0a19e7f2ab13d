"""Matrices with a row and a column for each client, as arrays of a method's state.

Each client's entry `slot` is its row and column. A new client takes the lowest that is free, also that of one who was
forgotten; no number of the one before is left in it.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_server.planning.method import State

Matrix = NDArray[np.float64]
SLOT = "slot"
"""Entry of each client."""


def slots_of(state: State) -> dict[bytes, int]:
    """The row of each client that has one."""
    return {client: entries[SLOT] for client, entries in state.clients.items() if SLOT in entries}


def with_new(known: Mapping[bytes, int], clients: Iterable[bytes]) -> dict[bytes, int]:
    """The rows of these clients too; new ones take free rows in ascending order of their ids."""
    new = sorted(set(clients) - known.keys())
    free = sorted(set(range(len(known) + len(new))) - set(known.values()))
    return {**known, **dict(zip(new, free, strict=False))}


def size_of(slots: Mapping[bytes, int]) -> int:
    """The rows of a matrix for these clients."""
    return max(slots.values(), default=-1) + 1


def grown(matrix: Array | None, known: Mapping[bytes, int], unused: Matrix) -> Matrix:
    """A matrix with the numbers of known clients, in the shape of `unused`, which has all others.

    Args:
        matrix: float[slots, slots], of which only the rows and columns of known clients count; None: there is none.
        known: The row of each client that is in it.
        unused: float64, at least as large.
    """
    result = unused.copy()
    used = np.array(sorted(known.values()), np.intp)
    if matrix is not None and len(used):
        result[np.ix_(used, used)] = np.asarray(matrix, np.float64)[np.ix_(used, used)]
    return result
