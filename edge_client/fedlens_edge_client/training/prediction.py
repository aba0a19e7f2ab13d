"""Predictions of a model for photos."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedlens_edge_client.engines import BadInput, Engine
from fedlens_edge_client.training.evaluation import log_softmax
from fedlens_edge_client.training.extracted import one_row
from fedlens_edge_client.training.photo_set import PhotoSet
from fedlens_proto import photos
from fedlens_proto.blob import Array
from fedlens_proto.v1 import manifest_pb2


def predict(
    engine: Engine,
    weights: Mapping[str, Array],
    photo: Path | BinaryIO,
    extractors: Sequence[Mapping[str, Array] | None] = (),
) -> dict[str, float]:
    """The probability of each class, in label order; they add up to 1.

    Args:
        engine: For the bundle of the weights.
        weights: Every exchangeable tensor.
        photo: A file, or a seekable stream with its content.
        extractors: If the bundle concatenates extractors, the tensors of each in order, None for an absent one.

    Raises:
        PhotoUnreadable: The photo cannot be decoded.
        EngineError: The weights do not fit, or a program fails.
    """
    manifest = engine.bundle.manifest
    rule = manifest.preprocessing
    inputs = photos.as_input(photos.load(photo, rule.height, rule.width))[np.newaxis]
    if manifest.bundle_class == manifest_pb2.BUNDLE_CLASS_FROZEN_BACKBONE:
        inputs = engine.embed(inputs)[np.newaxis]
    if len(extractors) != manifest.concatenated:
        raise BadInput(f"the model takes {manifest.concatenated} extractors side by side, there are {len(extractors)}")
    if extractors:
        inputs = one_row(inputs, engine, extractors)
    probabilities = np.exp(log_softmax(engine.predict(weights, inputs)))[0]
    return dict(zip(manifest.class_names, probabilities.tolist(), strict=True))


def classify(engine: Engine, weights: Mapping[str, Array], photos: PhotoSet) -> dict[bytes, int]:
    """The label index of each photo's most probable class, by digest; of equally probable classes the first.

    Args:
        engine: For the bundle of the weights.
        weights: Every exchangeable tensor.
        photos: With rows for this model.

    Raises:
        EngineError: The weights do not fit, or a program fails.
    """
    if not len(photos):
        return {}
    predicted = engine.predict(weights, photos.rows.inputs).argmax(axis=1)
    return {digest: int(label) for (digest, _), label in zip(photos.entries, predicted, strict=True)}
