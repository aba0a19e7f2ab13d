from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export.exporting import Training, frozen_backbone_bundle, whole_model_bundle
from fedlens_export.models import backbones, whole_models
from fedlens_export.network import Normalisation
from fedlens_proto.manifest import Bundle
from tests.once import once
from tests.phone_bundles import deriving_bundle

CLASSES = ("cat", "dog", "emu")
BATCH = 4
NOTHING = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.fixture(scope="session")
def head_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """8 x 8 photos become 12 features; the head is 12-512-3, trained by Adam with a proximal term."""
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    head = backbones.build_head("hidden", 12, len(CLASSES), seed=0)
    training = Training(class_names=CLASSES, batch=BATCH, objective="proximal", optimiser="adam")

    def make(folder: Path) -> None:
        frozen_backbone_bundle(folder, backbone, head, training, 8, normalisation=NOTHING)

    return once(tmp_path_factory, "head", make)


@pytest.fixture(scope="session")
def head(head_bundle: Bundle) -> TorchEngine:
    return TorchEngine(head_bundle)


@pytest.fixture(scope="session")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    """LeNet-5 on 16 x 16 photos, SGD and cross-entropy."""
    model = whole_models.build("lenet5", len(CLASSES), 16, seed=0)
    training = Training(class_names=CLASSES, batch=BATCH)
    return TorchEngine(once(tmp_path_factory, "cnn", lambda folder: whole_model_bundle(folder, model, training, 16)))


@pytest.fixture(scope="session")
def deriving(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle with every kind of program, without those for phones; see `phone_bundles.deriving_bundle`."""
    return deriving_bundle(tmp_path_factory.mktemp("engine"), pte=False)


class TinyNorm(nn.Module):
    """BatchNorm over 12 values, then FC."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(12)
        self.last = nn.Linear(12, len(CLASSES))

    def forward(self, photos: Tensor) -> Tensor:
        logits: Tensor = self.last(self.norm(photos.flatten(1)))
        return logits


@pytest.fixture(scope="session")
def norm(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    """A whole model with BatchNorm on 2 x 2 photos."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = TinyNorm()
    training = Training(class_names=CLASSES, batch=BATCH)

    def make(folder: Path) -> None:
        whole_model_bundle(folder, model, training, 2, normalisation=NOTHING)

    return TorchEngine(once(tmp_path_factory, "norm", make))
