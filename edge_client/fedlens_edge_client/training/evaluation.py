"""Evaluation of weights on photos, as sums; the arithmetic is the same for every engine."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Rows


@dataclass(frozen=True)
class Evaluation:
    """Sums over rows, never ratios.

    Attributes:
        count: Number of rows.
        correct: Rows whose greatest logit is the label's; of equal logits the first counts.
        loss: Cross-entropy in nats, computed and summed in float64 from the float32 logits.
        confusion: Numbers of rows, classes x classes, true classes outermost; None unless requested.
    """

    count: int
    correct: int
    loss: float
    confusion: tuple[int, ...] | None = None


def evaluate(
    predict: Callable[[NDArray[np.float32]], NDArray[np.float32]],
    rows: Rows,
    classes: int,
    *,
    with_confusion: bool = False,
) -> Evaluation:
    """Evaluate the logits that `predict` gives for the rows' inputs; without rows, all sums are 0."""
    if not len(rows.labels):
        nothing = (0,) * classes**2 if with_confusion else None
        return Evaluation(count=0, correct=0, loss=0.0, confusion=nothing)
    likelihoods = log_softmax(predict(rows.inputs))
    predicted = likelihoods.argmax(axis=1)
    loss = -likelihoods[np.arange(len(rows.labels)), rows.labels].sum()
    counts = np.bincount(rows.labels * classes + predicted, minlength=classes**2)
    return Evaluation(
        count=len(rows.labels),
        correct=int((predicted == rows.labels).sum()),
        loss=float(loss),
        confusion=tuple(counts.tolist()) if with_confusion else None,
    )


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logarithms of class probabilities, float64 [N, classes], from logits float32 [N, classes]."""
    wide = logits.astype(np.float64)
    shifted: NDArray[np.float64] = wide - wide.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
