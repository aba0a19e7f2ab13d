"""What a model sees in a photo."""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedlens_edge_client.engines import Engine
from fedlens_edge_client.evaluation import log_softmax
from fedlens_proto import photos
from fedlens_proto.blob import Array
from fedlens_proto.v1 import manifest_pb2


def predict(engine: Engine, weights: Mapping[str, Array], photo: Path | BinaryIO) -> dict[str, float]:
    """The probability of each class, in label order; they add up to 1.

    Args:
        engine: Of the bundle that the weights belong to.
        weights: Every exchangeable tensor.
        photo: A file, or a seekable stream with its content.

    Raises:
        PhotoUnreadable: It cannot be decoded.
        EngineError: The weights do not fit, or a program cannot be run.
    """
    manifest = engine.bundle.manifest
    rule = manifest.preprocessing
    inputs = photos.as_input(photos.load(photo, rule.height, rule.width))[np.newaxis]
    if manifest.bundle_class == manifest_pb2.BUNDLE_CLASS_FROZEN_BACKBONE:
        inputs = engine.embed(inputs)[np.newaxis]
    probabilities = np.exp(log_softmax(engine.predict(weights, inputs)))[0]
    return dict(zip(manifest.class_names, probabilities.tolist(), strict=True))
