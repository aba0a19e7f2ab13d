from pathlib import Path

import pytest
import torch
from torch import nn

from fedlens_export.exporting import ExportSpec, Training, export_bundle, frozen_backbone_bundle
from fedlens_export.models import backbones
from fedlens_proto.manifest import Bundle

CLASSES = ("cat", "dog", "emu")


@pytest.fixture(scope="session")
def small_spec() -> ExportSpec:
    return ExportSpec(model="lenet5_bn", class_names=CLASSES, input_size=16, batch=4)


@pytest.fixture(scope="session")
def whole_model(tmp_path_factory: pytest.TempPathFactory, small_spec: ExportSpec) -> Bundle:
    return export_bundle(tmp_path_factory.mktemp("export") / "whole", small_spec)


@pytest.fixture(scope="session")
def weights_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Backbone weights as torchvision's file has them, with a classifier that no one needs."""
    state = backbones.build("mobilenet_v3_small", 32, seed=7).state_dict()
    path = tmp_path_factory.mktemp("weights") / "backbone.pth"
    torch.save({**state, "classifier.0.weight": torch.zeros(1024, 576)}, path)
    return path


@pytest.fixture(scope="session")
def mobilenet(tmp_path_factory: pytest.TempPathFactory, weights_file: Path) -> Bundle:
    spec = ExportSpec(
        model="mobilenet_v3_small",
        class_names=CLASSES,
        input_size=32,
        batch=4,
        head="hidden",
        optimiser="adam",
        objective="proximal",
        backbone_weights=weights_file,
    )
    return export_bundle(tmp_path_factory.mktemp("export") / "mobilenet", spec)


@pytest.fixture(scope="session")
def flatten_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A backbone without any weights: 16 x 16 photos become 2 x 2 x 3 = 12 features."""
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    head = backbones.build_head("linear", 12, len(CLASSES), seed=0)
    folder = tmp_path_factory.mktemp("export") / "flatten"
    return frozen_backbone_bundle(folder, backbone, head, Training(class_names=CLASSES, batch=4), 16)
