"""A bundle whose backbone was trained on public photos first, for photos of an unusual size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.models import backbones, pretrain
from fedlens_export.network import IMAGENET
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle, program

pytestmark = pytest.mark.slow

MODEL, SIDE = "mobilenet_v3_small", 45


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, small_spec: ExportSpec, coloured: Path) -> Bundle:
    spec = replace(small_spec, model=MODEL, input_size=SIDE, pretrain=coloured, pretrain_epochs=1, seed=3)
    return export_bundle(tmp_path_factory.mktemp("export") / "bundle", spec)


def test_the_frozen_weights_are_the_pretrained_ones(bundle: Bundle, coloured: Path) -> None:
    backbone = backbones.build(MODEL, SIDE, seed=3)
    untrained = backbone.get_parameter("features.0.0.weight").detach().numpy().copy()
    pretrain.train(backbone, coloured, SIDE, IMAGENET, epochs=1, seed=3, on_stage=lambda stage: None)
    trained = backbone.get_parameter("features.0.0.weight").detach().numpy()

    frozen = Blob.open(bundle.part(bundle.manifest.frozen))

    (found,) = (frozen[name] for name in frozen if name.endswith("features.0.0.weight"))
    np.testing.assert_array_equal(found, trained)
    assert not np.array_equal(found, untrained)


def test_a_photo_of_an_unusual_size_is_embedded(bundle: Bundle) -> None:
    photo = np.random.default_rng(0).random((1, 3, SIDE, SIDE), np.float32)

    features = TorchEngine(bundle).embed(photo)

    assert list(program(bundle.manifest, "embed").inputs[-1].shape) == [1, 3, SIDE, SIDE]
    assert features.shape == (576,)
    assert np.isfinite(features).all() and features.any()


def test_only_the_head_travels(bundle: Bundle) -> None:
    # Three classes, 576 features each, and three biases.
    assert sum(tensor.size for tensor in bundle.initial().values()) == 3 * 576 + 3
