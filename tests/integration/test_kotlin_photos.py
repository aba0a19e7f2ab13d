"""Photos as the Kotlin client decodes them, on a desktop and on Android, get the same label as Python's."""

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_proto.photos import as_input
from tests.integration import kotlin_client
from tests.vectors import make

Numbers = NDArray[np.float32]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DECODERS = ("ImageIoDecoderTest", "BitmapDecoderTest")


def features(engine: TorchEngine, pixels: list[bytes]) -> Numbers:
    """The features of photos by the vectors' backbone, float32 [N, F], from uint8 [3, H, W] each."""
    rule = engine.bundle.manifest.preprocessing
    shape = (1, 3, rule.height, rule.width)
    return np.stack([engine.embed(as_input(np.frombuffer(photo, np.uint8).reshape(shape))) for photo in pixels])


def test_fifty_photos_get_the_label_that_they_get_from_python() -> None:
    kotlin_client.build()
    folder = kotlin_client.PHOTOS
    engine = TorchEngine(make.committed_bundle())
    rule = engine.bundle.manifest.preprocessing
    photos = [
        entry["expected"]
        for entry in json.loads((folder / "photos.json").read_bytes())["photos"]
        if (entry["height"], entry["width"]) == (rule.height, rule.width)
    ]
    assert len(photos) in (24, 54)
    expected = features(engine, [(folder / name).read_bytes() for name in photos])
    weights = {name: np.array(value) for name, value in engine.bundle.initial().items()}
    # Untrained weights find one class in everything; without the mean of their logits all three classes occur.
    weights["classifier.bias"] -= engine.predict(weights, expected).mean(axis=0)
    wanted = engine.predict(weights, expected).argmax(axis=1)
    assert set(wanted) == {0, 1, 2}
    for decoder in DECODERS:
        paths = {number: folder / f"{name}.{decoder}" for number, name in enumerate(photos)}
        # The JDK's decoder refuses lossy WebP.
        taken = [number for number, path in paths.items() if path.exists()]
        assert len(photos) - len(taken) == (4 if decoder == "ImageIoDecoderTest" else 0)
        found = features(engine, [paths[number].read_bytes() for number in taken])
        np.testing.assert_array_equal(engine.predict(weights, found).argmax(axis=1), wanted[taken], decoder)
