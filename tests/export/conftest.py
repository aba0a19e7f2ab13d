from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.models import backbones
from fedlens_proto.manifest import Bundle
from tests.export import small
from tests.export.small import CLASSES, SIDE
from tests.once import once


@pytest.fixture(scope="session")
def small_spec() -> ExportSpec:
    return ExportSpec(model="lenet5_bn", class_names=CLASSES, input_size=SIDE, batch=4)


@pytest.fixture(scope="session")
def whole_model(tmp_path_factory: pytest.TempPathFactory, small_spec: ExportSpec) -> Bundle:
    return once(tmp_path_factory, "whole", lambda folder: export_bundle(folder, small_spec))


@pytest.fixture(scope="session")
def weights_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Backbone weights as torchvision's file has them, with a classifier that no one needs."""
    state = backbones.build("mobilenet_v3_small", 32, seed=7).state_dict()
    path = tmp_path_factory.mktemp("weights") / "backbone.pth"
    torch.save({**state, "classifier.0.weight": torch.zeros(1024, 576)}, path)
    return path


@pytest.fixture(scope="session")
def mobilenet(tmp_path_factory: pytest.TempPathFactory, small_spec: ExportSpec, weights_file: Path) -> Bundle:
    spec = replace(small_spec, model="mobilenet_v3_small", input_size=32, backbone_weights=weights_file)
    spec = replace(spec, head="hidden", optimiser="adam", objective="proximal")
    return export_bundle(tmp_path_factory.mktemp("export") / "mobilenet", spec)


@pytest.fixture(scope="session")
def flatten_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return small.frozen_bundle(tmp_path_factory.mktemp("export") / "flatten")


@pytest.fixture(scope="session")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen photos of each of two colours, and one that is damaged."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name, colour in (("blue", (40, 40, 200)), ("red", (200, 40, 40))):
        (root / name).mkdir()
        for i in range(16):
            noise = rng.integers(0, 50, (32, 32, 3))
            Image.fromarray((noise + colour).astype(np.uint8)).save(root / name / f"{i}.png")
    (root / "red" / "damaged.png").write_bytes(b"no photo")
    return root
