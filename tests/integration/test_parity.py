"""From the same photos to the same head: eager, `.pt2` and `.pte`, with real backbones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedlens_edge_client.engines import Engine, Rows
from fedlens_edge_client.engines.executorch import ExecutorchEngine
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones
from fedlens_export.network import IMAGENET
from fedlens_export.programs.steps import feature_count
from fedlens_proto import photos as preprocessing
from fedlens_proto.blob import Array

SIDE, BATCH = 32, 16
CLASSES = tuple(str(number) for number in range(10))
RATES = {"lr_extractor": 0.01, "lr_classifier": 0.01, "momentum": 0.9}
TOLERANCE = 1e-5


def with_statistics_of(images: torch.Tensor, backbone: nn.Module) -> nn.Module:
    """The backbone with BatchNorm that has seen these photos: its first statistics make features of almost nothing."""
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            module.reset_running_stats()
    with torch.no_grad():
        backbone.train()(IMAGENET(images))
    return backbone.eval()


def trained(
    engine: Engine, initial: dict[str, Array], images: Array, labels: Array, order: list[Array]
) -> dict[str, Array]:
    features = np.stack([engine.embed(image[None]) for image in images])
    return engine.train("step", initial, Rows(features, labels), order, RATES, {})


def trained_eagerly(
    backbone: nn.Module, head: nn.Module, images: Array, labels: Array, order: list[Array]
) -> dict[str, Array]:
    with torch.no_grad():
        features = torch.cat([backbone(IMAGENET(torch.from_numpy(image[None]))) for image in images])
    optimiser = torch.optim.SGD(head.parameters(), RATES["lr_classifier"], momentum=RATES["momentum"])
    targets = torch.from_numpy(labels)
    for batch in order:
        optimiser.zero_grad()
        functional.cross_entropy(head(features[batch]), targets[batch]).backward()
        optimiser.step()
    return {name: value.detach().numpy() for name, value in head.state_dict().items()}


@pytest.mark.long
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "resnet18", "efficientnet_b0"])
def test_the_head_after_one_epoch_is_the_same_from_photos_on(name: str, tmp_path: Path, cifar10: Path) -> None:
    files = sorted(cifar10.rglob("*.jpg"))[::2]
    images = np.stack([preprocessing.as_input(preprocessing.load(file, SIDE, SIDE)) for file in files])
    labels = np.array([int(file.parent.name) for file in files])
    order = np.array_split(np.random.default_rng(0).permutation(len(files)), -(-len(files) // BATCH))
    backbone = with_statistics_of(torch.from_numpy(images), backbones.build(name, SIDE, seed=0))
    head = backbones.build_head("hidden", feature_count(backbone, (3, SIDE, SIDE)), len(CLASSES), seed=0)
    bundle = frozen_backbone_bundle(
        tmp_path / "bundle",
        backbone,
        head,
        Training(class_names=CLASSES, batch=BATCH, pte=True),
        SIDE,
        normalisation=IMAGENET,
    )
    initial = {key: np.array(value) for key, value in bundle.initial().items()}

    eager = trained_eagerly(backbone, head, images, labels, order)
    torch_head = trained(TorchEngine(bundle), initial, images, labels, order)
    phone_head = trained(ExecutorchEngine(bundle), initial, images, labels, order)

    for key, value in eager.items():
        assert np.abs(value - initial[key]).max() > 100 * TOLERANCE
        np.testing.assert_allclose(torch_head[key], value, rtol=0, atol=TOLERANCE, err_msg=key)
        np.testing.assert_allclose(phone_head[key], value, rtol=0, atol=TOLERANCE, err_msg=key)
