"""Rules that keep a few bad updates from steering a round: `exclude`, `clip` and `cap`.

    change    what a client uploaded minus what it was sent, decoded; its norms are computed when it arrives, or
              with the round's aggregation if no rule was on then
    median    over the updates of clients that trained on photos

`exclude` leaves out whose change is far above the median, `clip` makes each change at most as large as the median one,
and `cap` bounds how much an update can weigh by the photos that its client says it has. Trained weights are one vector
and float buffers, which no learning rate bounds, another. No rule finds a change of ordinary size in a wrong direction.

Rules get the updates that were frozen with the round, ascending by client id, and are pure functions of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import NamedTuple

import numpy as np

from fedlens_proto.blob import Array
from fedlens_proto.v1 import blob_pb2, manifest_pb2
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import Norms, TensorSet, Update
from fedlens_server.rules.clipped import ClippedTensors

FEWEST_TO_EXCLUDE, FAR = 5, 10.0
FEWEST_TO_CLIP = 3
MOST_EXAMPLES = 3.0
_KINDS = {"trained": "change", "buffers": "change of buffers", "own": "uploaded values"}


class Bounds(NamedTuple):
    """The median norms of a round's changes, to which a round with few updates clips, too."""

    trained: float
    buffers: float


@dataclass(frozen=True)
class Tensors:
    """Names of the tensors that are not trained."""

    buffers: frozenset[str]
    integers: frozenset[str]

    @classmethod
    def of(cls, manifests: Sequence[manifest_pb2.Manifest]) -> "Tensors":
        """Those of these bundles."""
        tensors = [tensor for manifest in manifests for tensor in manifest.tensors]
        integers = frozenset(each.name for each in tensors if each.dtype == blob_pb2.DTYPE_INT64)
        buffers = frozenset(each.name for each in tensors if each.kind == manifest_pb2.TENSOR_KIND_BUFFER)
        return cls(buffers - integers, integers)


def exclude(updates: Sequence[Update]) -> tuple[list[Update], dict[bytes, str]]:
    """The updates without those whose change has a norm above 10 times the median, and the reason for each of these.

    Fewer than 5 updates stay as they are: the median of so few may be a bad one itself.
    """
    known = _trained(updates)
    if len(known) < FEWEST_TO_EXCLUDE:
        return list(updates), {}
    reasons: dict[bytes, str] = {}
    for kind, of in _KINDS.items():
        middle = median(getattr(each, kind) for each in known)
        for update in updates:
            norm = 0.0 if update.norms is None else getattr(update.norms, kind)
            if 0 < FAR * middle < norm:
                found = f"the norm of its {of} is {norm:g}, more than {FAR:g} times the median, {middle:g}"
                reasons[update.client] = found
    return [update for update in updates if update.client not in reasons], reasons


def clip(updates: Sequence[Update], last: Bounds | None, tensors: Tensors) -> tuple[list[Update], Bounds | None]:
    """The updates with changes at most as large as the median one, and the medians.

    Integers, such as BatchNorm's batch counter, become the median of all. A median of 0, such as that of buffers that
    honest training leaves alone, takes the whole change of the others back.

    Args:
        updates: Of a round.
        last: The medians of the task's last round; fewer than 3 updates are clipped to them. There 0 bounds nothing:
            a task with so few clients could never move again.
        tensors: Names of buffers and integers.
    """
    known = _trained(updates)
    bounds, used = last, None if last is None else Bounds(last.trained or inf, last.buffers or inf)
    if len(known) >= FEWEST_TO_CLIP:
        bounds = used = Bounds(median(each.trained for each in known), median(each.buffers for each in known))
    integers = {name: _lower_median(updates, name) for name in sorted(tensors.integers)}
    return [_clipped(update, used, tensors.buffers, integers) for update in updates], bounds


def cap(updates: Sequence[Update]) -> list[Update]:
    """The updates with numbers of examples, and of each class, at most 3 times the median of those that have any."""
    most = _cap([update.num_examples for update in updates])
    counted = [update.class_counts for update in updates if update.class_counts is not None]
    most_of_class = [_cap(counts) for counts in zip(*counted, strict=True)]

    def capped(update: Update) -> Update:
        count = min(update.num_examples, most)
        if update.class_counts is None:
            return replace(update, num_examples=count)
        # Rounded up: a class that is there stays, and its rows of a classifier are not those of clients without it.
        scaled = (-(-each * count // max(update.num_examples, 1)) for each in update.class_counts)
        counts = tuple(min(each, limit) for each, limit in zip(scaled, most_of_class, strict=True))
        return replace(update, num_examples=count, class_counts=counts)

    return [capped(update) for update in updates]


def _trained(updates: Sequence[Update]) -> list[Norms]:
    """The norms of those that trained on photos: the change of any other is 0, and says nothing of the others."""
    return [update.norms for update in updates if update.norms is not None and update.num_examples > 0]


def _clipped(
    update: Update, bounds: Bounds | None, buffers: frozenset[str], integers: Mapping[str, Array | None]
) -> Update:
    norms, weights = update.norms, update.values.get(WEIGHTS)
    if norms is None or weights is None:
        return update
    instead = {name: value for name, value in integers.items() if value is not None and name in weights}
    trained = _factor(norms.trained, bounds.trained) if bounds else 1.0
    of_buffers = _factor(norms.buffers, bounds.buffers) if bounds else 1.0
    if not instead and trained == of_buffers == 1.0:
        return update
    bases = {name: update.sent[base] for name, base in update.bases.items() if name in update.sent.get(base, ())}
    factors = {name: of_buffers if name in buffers else trained for name in bases}
    return replace(update, values={**update.values, WEIGHTS: ClippedTensors(weights, bases, factors, instead)})


def _factor(norm: float, bound: float) -> float:
    return bound / norm if bound < norm else 1.0


def _lower_median(updates: Sequence[Update], name: str) -> Array | None:
    sets: list[TensorSet] = [update.values[WEIGHTS] for update in updates if WEIGHTS in update.values]
    found = [each[name] for each in sets if name in each]
    return np.sort(np.stack(found), axis=0)[(len(found) - 1) // 2] if found else None


def _cap(counts: Sequence[int]) -> int:
    positive = [count for count in counts if count > 0]
    return int(MOST_EXAMPLES * median(positive)) if positive else 0
