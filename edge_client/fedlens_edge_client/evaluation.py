"""How well weights classify photos, as sums: the same arithmetic whatever engine gives the logits."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Engine, Rows
from fedlens_proto.blob import Array


@dataclass(frozen=True)
class Evaluation:
    """Sums over rows, never ratios.

    Attributes:
        count: Rows.
        correct: Rows whose greatest logit is the label's; of equal ones the first counts.
        loss: Cross-entropy in nats, computed and summed in float64 from the float32 logits.
    """

    count: int
    correct: int
    loss: float


def evaluate(engine: Engine, weights: Mapping[str, Array], rows: Rows) -> Evaluation:
    """How well these weights classify these rows; without rows, all sums are 0.

    Raises:
        BadInput: Weights or rows are not what the manifest says.
        NonFinite: The logits hold a NaN or an infinity.
    """
    if not len(rows.labels):
        return Evaluation(count=0, correct=0, loss=0.0)
    likelihoods = log_softmax(engine.predict(weights, rows.inputs))
    right = likelihoods.argmax(axis=1) == rows.labels
    loss = -likelihoods[np.arange(len(rows.labels)), rows.labels].sum()
    return Evaluation(count=len(rows.labels), correct=int(right.sum()), loss=float(loss))


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """The logarithm of each class's probability, float64 [N, classes], from logits float32 [N, classes]."""
    wide = logits.astype(np.float64)
    shifted: NDArray[np.float64] = wide - wide.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
