"""Central differential privacy: the updates of a round as one, of clipped changes and noise.

    new = sent + (sum of clip_C(change) + N(0, (z C)^2)) / goal

Paper: McMahan, Ramage, Talwar, Zhang, ICLR 2018, https://arxiv.org/abs/1710.06963, Algorithm 1 with a fixed
denominator; the Gaussian mechanism over all uploaded tensors as one vector.

    paper     here     meaning
    S         clip     C, the largest norm of a client's change
    z         noise    deviation of the noise as a multiple of C
    qW        goal     the divisor: as many updates as a round wants, whether more came or fewer
    Delta_k   change   update minus what its client was sent, decoded

Deviations: clients count alike, whatever their numbers of photos. They are those that came, not a random sample, so
the accounting (`epsilon.py`) has no amplification by sampling.

Changes and noise are whole multiples of a unit far below the noise, z C / 2^24. Their sum is then exact, and what
leaves follows from it alone: the last digits of floating-point numbers tell nothing (Mironov, CCS 2012). Changes are
rounded towards zero, so that rounding makes no norm larger.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from math import floor, isfinite, log2, pi, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import GLOBAL, NothingToAggregate, Update, span

_SPAN = 1 << 14  # elements that are in memory at a time, of each array
_FINENESS = 24  # binary digits of the noise's deviation
Float64s = NDArray[np.float64]
Shapes = Mapping[str, tuple[int, ...]]


def private_update(updates: Sequence[Update], shapes: Shapes, *, clip: float, noise: float, goal: int) -> Update:
    """An update of no client that holds the new model; each call draws other noise.

    Args:
        updates: Of clients that were all sent the same.
        shapes: Of each uploaded tensor; all are float.
        clip: C > 0.
        noise: z > 0.
        goal: The divisor.

    Raises:
        NothingToAggregate: There are no updates, or clients were sent different models.
    """
    if not updates:
        raise NothingToAggregate("no updates came")
    sent = updates[0].sent[GLOBAL]
    if any(update.sent[GLOBAL] is not sent for update in updates):
        raise NothingToAggregate("clients were sent different models, whose changes have no sum")
    unit, scales = unit_of(clip, noise), factors(updates, shapes, clip)
    new: dict[str, Array] = {}
    for name, shape in shapes.items():
        tensor = np.empty(prod(shape), np.float32)
        for a, b in _spans(prod(shape)):
            total = clipped_sum(updates, scales, unit, name, a, b)
            total += np.rint(gaussian(b - a) * (noise * clip / unit))
            tensor[a:b] = span(sent, name, a, b) + total * (unit / goal)
        new[name] = tensor.reshape(shape)
    return Update(client=b"", num_examples=1, values={WEIGHTS: new}, sent=updates[0].sent)


def unit_of(clip: float, noise: float) -> float:
    """The unit of changes and noise: a power of two, so that multiplying by it is exact."""
    return 2.0 ** (floor(log2(clip * noise)) - _FINENESS)


def factors(updates: Sequence[Update], shapes: Shapes, clip: float) -> list[float]:
    """By update the factor that makes the norm of its change at most `clip`; 0 where the norm is not finite.

    Args:
        updates: Of clients that were all sent the same.
        shapes: Of each uploaded tensor, which are together one vector.
        clip: C > 0.
    """
    squares = [0.0] * len(updates)
    for name, shape in shapes.items():
        for a, b in _spans(prod(shape)):
            for i, change in enumerate(_changes(updates, name, a, b)):
                squares[i] += float(change @ change)
    norms = [sqrt(each) if isfinite(each) else 0.0 for each in squares]
    # The margin is for the rounding of products and sums: the norm is never above, not even in its last digit.
    return [min(1.0, clip * (1 - 2**-32) / norm) if norm > 0 else 0.0 for norm in norms]


def clipped_sum(
    updates: Sequence[Update], scales: Sequence[float], unit: float, name: str, start: int, stop: int
) -> Float64s:
    """Elements of the sum of clipped changes before the noise, in multiples of `unit`, float64[stop - start].

    Args:
        updates: Of clients that were all sent the same.
        scales: Of each, by `factors`.
        unit: By `unit_of`.
        name: Of the tensor.
        start: First element.
        stop: One after the last element.
    """
    total = np.zeros(stop - start)
    for scale, change in zip(scales, _changes(updates, name, start, stop), strict=True):
        if scale > 0:
            change *= scale / unit
            total += np.trunc(change, out=change)
    return total


def gaussian(count: int) -> Float64s:
    """Draws from N(0, 1) by the operating system's randomness alone, float64[count].

    There is no seed that someone could keep or learn, and no state from which other draws follow. By Box and Muller,
    with 64 random bits a draw: none is beyond 9.5 deviations, which would come once in 10^20 draws.
    """
    half = -(-count // 2)
    bits = np.frombuffer(os.urandom(16 * half), np.uint64).reshape(2, half)
    radius = np.sqrt(-2 * np.log((bits[0] + 0.5) * 2.0**-64))
    angle = bits[1] * (2 * pi * 2.0**-64)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _changes(updates: Sequence[Update], name: str, start: int, stop: int) -> Iterator[Float64s]:
    """Elements of each change, in one array that the next one overwrites."""
    sent = span(updates[0].sent[GLOBAL], name, start, stop).astype(np.float64)
    buffer, change = np.empty(stop - start, np.float32), np.empty(stop - start)
    for update in updates:
        np.subtract(span(update.values[WEIGHTS], name, start, stop, buffer), sent, out=change)
        yield change


def _spans(size: int) -> Iterator[tuple[int, int]]:
    return ((a, min(a + _SPAN, size)) for a in range(0, size, _SPAN))
