"""Label distributions inferred from the clients' models on random images: FedConcat-ID.

Paper: FedConcat, appendix B.

    paper   here     meaning
    N       images   random images, uniform in 0..1; 10,000
    q_k     a row    mean over the images of softmax(model_k(x)), models in evaluation mode
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlens_proto.blob import Array
from fedlens_server.methods.arithmetic.clustering import Rows
from fedlens_server.planning.method import TensorSet

IMAGES = 10_000
IMAGE_BYTES = 64 << 20  # of the images in memory at a time


def mean_softmax(logits: Array) -> Rows:
    """The mean of the predicted probabilities, `(1/N) sum_x softmax(model(x))`; not the softmax of the mean.

    Args:
        logits: Logits of N >= 1 images, float [N, C].

    Returns:
        float64 [C], adding up to 1; not finite where the logits are not.

    Source: FedConcat, appendix B.
    """
    wide = np.asarray(logits, np.float64)
    with np.errstate(invalid="ignore"):
        raised = np.exp(wide - wide.max(1, keepdims=True))
    return np.asarray((raised / raised.sum(1, keepdims=True)).mean(0), np.float64)


def label_distributions(
    infer: Callable[[TensorSet, NDArray[np.float32]], NDArray[np.float32]],
    models: Sequence[TensorSet],
    images: int,
    photo_shape: tuple[int, int, int],
    generator: np.random.Generator,
) -> Rows:
    """The mean predictions of each model on the same random images, uniform in 0..1.

    Args:
        infer: As `Tools.infer`.
        models: The weights of each model.
        images: The number of images, at least one.
        photo_shape: The shape of one image.
        generator: Source of the images.

    Returns:
        float64 [models, classes], each row adding up to 1; not finite where a model's logits are not.

    Source: FedConcat, appendix B.
    """
    at_once = max(1, min(images, IMAGE_BYTES // (4 * int(np.prod(photo_shape)))))
    total: Any = 0.0
    for first in range(0, images, at_once):
        count = min(at_once, images - first)
        drawn = generator.random((count, *photo_shape), np.float32)
        total = total + np.stack([count * mean_softmax(infer(model, drawn)) for model in models])
    return np.asarray(total / images, np.float64)


def from_bias(before: ArrayLike, after: ArrayLike, steps: int, rate: float) -> NDArray[np.float64]:
    """The share of each class from a classifier's bias, before and after plain SGD from equal features, float64[C].

    Args:
        before: b_0, float[C].
        after: b_k, float[C].
        steps: Local steps, at least 1.
        rate: Learning rate of the bias, above 0.

    Returns:
        `(b_k - b_0) / (steps * rate) + softmax(b_0)`; entries may be negative, and need not add up to 1.

    Source: FedConcat, appendix D.10; Ramakrishna and Dan 2022.
    """
    start = np.asarray(before, np.float64)
    exponentials = np.exp(start - start.max())
    moved = (np.asarray(after, np.float64) - start) / (steps * rate)
    return np.asarray(moved + exponentials / exponentials.sum(), np.float64)
