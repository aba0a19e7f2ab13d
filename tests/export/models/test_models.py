"""The models that are trained as a whole: what they cost, what they share, and that they become programs."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torchvision  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor, nn

from fedlens_export.errors import NotExportable
from fedlens_export.models import backbones, paper_models, small_models, whole_models
from fedlens_export.network import CENTRED, Network
from fedlens_export.programs import parity, steps
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.export.small import difference

CLASSES = 4
BATCH = 4
LARGE = whole_models.MODELS[3:]
WITH_512 = tuple(name for name in LARGE if name != "fedns_alexnet")
QUICK = ("small_separable", "small_inception", "alexnet_whole", "resnet18", "alexnet")


def multiply_adds(model: nn.Module, side: int) -> int:
    """Of convolutions and FC layers, for one photo: outputs times the inputs of each."""
    total = 0

    def count(layer: nn.Module, _inputs: object, output: Tensor) -> None:
        nonlocal total
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        total += output.numel() * layer.weight[0].numel()

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, side, side))
    return total


# small_plain by hand: 16 * 27 * 32^2 = 442,368; 20 * 144 * 16^2 = 737,280; 32 * 180 * 8^2 = 368,640;
# 512 * 512 = 262,144; 10 * 512 = 5,120: together 1,815,552.
def test_multiply_adds_are_counted_right() -> None:
    assert multiply_adds(whole_models.build("small_plain", 10, 32, seed=0), 32) == 1_815_552


@pytest.mark.parametrize("name", ["lenet5", "lenet5_bn", "small_plain"])
def test_features_are_what_enters_the_relu_before_the_classifier(name: str) -> None:
    network = Network(whole_models.build(name, CLASSES, 16, seed=0), (3, 16, 16), CENTRED)
    photos = torch.rand(BATCH, 3, 16, 16)

    features, logits, _ = network.with_features(network.weights, network.buffers, photos, training=False)

    torch.testing.assert_close(network.classifier(features.relu()), logits)
    torch.testing.assert_close(network.classify(network.weights, features.relu()), logits)
    torch.testing.assert_close(network(network.weights, network.buffers, photos, training=False)[0], logits)


def test_a_model_that_does_not_return_features_is_told_so() -> None:
    with pytest.raises(NotExportable, match=r"Linear does not return them; take a model that does, such as lenet5"):
        Network(nn.Linear(3, CLASSES), (3,)).check_features()


# vgg9: 3 * 3 * (3 * 32 + 32 * 64 + 64 * 128 + 128 * 128 + 128 * 256 + 256 * 256) + 864 biases = 1,126,080; four by four
# pixels are left: 4096 * 512 + 512 = 2,097,664; 512 * 512 + 512 = 262,656; 512 * 10 + 10 = 5,130.
# fedns_alexnet: torchvision's 61,100,840 for 1000 classes, of which 4097 for each of the 990 others.
# resnet50_whole: torchvision's 25,557,032, less 2048 * 1000 + 1000, with 2048 * 512 + 512 and 5,130.
@pytest.mark.parametrize(
    ("name", "side", "parameters"),
    [("vgg9", 32, 3_491_530), ("fedns_alexnet", 63, 57_044_810), ("resnet50_whole", 32, 24_562_250)],
)
def test_a_papers_model_has_its_papers_layers(name: str, side: int, parameters: int) -> None:
    with torch.device("meta"):
        model = whole_models.build(name, 10, side, seed=0)

    assert sum(tensor.numel() for tensor in model.parameters()) == parameters


@pytest.mark.slow
def test_fedns_alexnet_is_torchvisions_without_dropout() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        theirs = torchvision.models.alexnet(weights=None, num_classes=CLASSES).eval()
    network = Network(whole_models.build("fedns_alexnet", CLASSES, 63, seed=3), (3, 63, 63), CENTRED)
    photos = torch.rand(2, 3, 63, 63)

    features, logits, _ = network.with_features(network.weights, network.buffers, photos, training=True)

    assert features.shape == (2, 4096)
    torch.testing.assert_close(logits, theirs(CENTRED(photos)))
    classifier = {t.name: list(t.shape) for t in network.describe() if t.role == pb.TENSOR_ROLE_CLASSIFIER}
    assert classifier == {"classifier.bias": [CLASSES], "classifier.weight": [CLASSES, 4096]}


@pytest.mark.parametrize("name", small_models.MODELS)
def test_a_small_model_costs_at_most_two_million_multiply_adds(name: str) -> None:
    assert multiply_adds(whole_models.build(name, 10, 32, seed=0), 32) <= 2_000_000


@pytest.mark.parametrize("name", WITH_512)
def test_models_of_different_make_share_their_classifiers_shape(name: str) -> None:
    network = Network(whole_models.build(name, CLASSES, 32, seed=0), (3, 32, 32), CENTRED)

    classifier = {t.name: list(t.shape) for t in network.describe() if t.role == pb.TENSOR_ROLE_CLASSIFIER}
    features, logits, _ = network.with_features(
        network.weights, network.buffers, torch.zeros(1, 3, 32, 32), training=False
    )

    assert classifier == {"classifier.bias": [CLASSES], "classifier.weight": [CLASSES, 512]}
    assert (features.shape, logits.shape) == ((1, 512), (1, CLASSES))
    torch.testing.assert_close(logits, network.module.get_submodule("classifier")(features.relu()))


@pytest.mark.parametrize("name", [*small_models.MODELS, "shufflenet_v2_whole"])
def test_a_seed_draws_the_same_weights_again(name: str) -> None:
    first, second, other = (whole_models.build(name, CLASSES, 32, seed).state_dict() for seed in (1, 1, 2))

    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["extractor.fc.weight"], other["extractor.fc.weight"])


@pytest.mark.parametrize(
    ("name", "least"), [("small_residual", 16), ("resnet18_whole", 32), ("vgg9", 16), ("fedns_alexnet", 63)]
)
def test_photos_that_are_too_small_are_refused(name: str, least: int) -> None:
    with torch.device("meta"):
        whole_models.build(name, CLASSES, least, seed=0)

    with pytest.raises(NotExportable, match=f"{name} needs photos of at least {least} pixels a side, not {least - 1}"):
        whole_models.build(name, CLASSES, least - 1, seed=0)


def quick_or_long(names: Sequence[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in names]


# Their steps are tested where the engine's are.
@pytest.mark.parametrize("name", quick_or_long(LARGE))
def test_a_models_prediction_passes_the_vetting(name: str) -> None:
    side = max(32, paper_models.LEAST_SIDE.get(name, 0))
    network = Network(whole_models.build(name, CLASSES, side, seed=0), (3, side, side), CENTRED)

    # Loading vets it, and a NaN breaks the parity.
    found = difference(steps.predict(network, BATCH, CLASSES), {**network.weights, **network.buffers})
    assert found <= parity.TOLERANCE


@pytest.mark.parametrize("name", quick_or_long(backbones.BACKBONES))
def test_a_backbone_passes_the_vetting(name: str) -> None:
    backbone = backbones.build(name, 64, seed=0)
    source = steps.embed(backbone, backbones.normalisation(name), (3, 64, 64))

    assert difference(source, steps.frozen_tensors(backbone)) <= parity.TOLERANCE
