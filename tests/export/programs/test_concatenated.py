"""Bundles with one classifier on several extractors side by side."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlens_export.errors import NotExportable
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.models import whole_models
from fedlens_export.network import CENTRED
from fedlens_export.programs import lowering
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.export.small import frozen_bundle, whole_bundle

K = 3


@pytest.fixture(scope="module")
def concatenated(tmp_path_factory: pytest.TempPathFactory, small_spec: ExportSpec) -> Bundle:
    folder = tmp_path_factory.mktemp("concatenated") / "bundle"
    return export_bundle(folder, replace(small_spec, concatenated=K))


def call(bundle: Bundle, name: str, given: Mapping[tuple[pb.SlotKind, str], Tensor]) -> Tensor:
    function = lowering.load(bundle.program_file(name, pb.PROGRAM_FORMAT_PT2).read_bytes())
    with torch.no_grad():
        (found,) = function(*(given[slot.kind, slot.name] for slot in program(bundle.manifest, name).inputs))
    return found


def test_only_a_new_classifier_is_exchanged(concatenated: Bundle) -> None:
    # LeNet-5's classifier has 84 inputs; 3 * 84 = 252.
    manifest = concatenated.manifest
    assert manifest.concatenated == K
    shapes = {t.name: list(t.shape) for t in manifest.tensors}
    assert shapes == {"classifier.bias": [3], "classifier.weight": [3, 252]}
    assert {t.role for t in manifest.tensors} == {pb.TENSOR_ROLE_CLASSIFIER}
    assert [p.name for p in manifest.programs] == ["extract", "step", "predict"]
    assert manifest.last_batch == pb.LAST_BATCH_MASKED
    assert concatenated.initial().keys() == shapes.keys()


def test_extract_takes_the_extractor_of_the_ordinary_bundle(concatenated: Bundle, whole_model: Bundle) -> None:
    inputs = program(concatenated.manifest, "extract").inputs
    taken = [(s.name, list(s.shape)) for s in inputs if s.kind == pb.SLOT_KIND_EXTRACTOR]

    assert taken == [
        (t.name, list(t.shape)) for t in whole_model.manifest.tensors if t.role == pb.TENSOR_ROLE_EXTRACTOR
    ]
    assert list(inputs[-1].shape) == [4, 3, 16, 16]
    assert concatenated.manifest.model == whole_model.manifest.model


def test_classifiers_side_by_side_give_the_sum_of_the_models_logits(concatenated: Bundle) -> None:
    # Weights along the inputs, biases added up: W [f1 f2 f3] + b = sum over j of (Wj fj + bj).
    networks = [whole_models.build("lenet5_bn", 3, 16, seed).eval() for seed in range(K)]
    photos = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    weights = torch.cat([network.get_parameter("fc3.weight") for network in networks], 1)
    biases = torch.stack([network.get_parameter("fc3.bias") for network in networks]).sum(0)

    rows = [
        call(
            concatenated,
            "extract",
            {(pb.SLOT_KIND_EXTRACTOR, name): tensor for name, tensor in network.state_dict().items()}
            | {(pb.SLOT_KIND_INPUT, ""): photos},
        )
        for network in networks
    ]
    given = {
        (pb.SLOT_KIND_WEIGHT, "classifier.weight"): weights,
        (pb.SLOT_KIND_WEIGHT, "classifier.bias"): biases,
        (pb.SLOT_KIND_INPUT, ""): torch.cat(rows, 1),
        (pb.SLOT_KIND_MASK, ""): torch.ones(4),
    }
    found = call(concatenated, "predict", given)

    with torch.no_grad():
        expected = torch.stack([network(CENTRED(photos)) for network in networks]).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_frozen_backbone_concatenates_what_its_head_makes_of_the_features(tmp_path: Path) -> None:
    manifest = frozen_bundle(tmp_path, head="hidden", concatenated=2).manifest

    extract = program(manifest, "extract")
    assert [p.name for p in manifest.programs] == ["embed", "extract", "step", "predict"]
    assert list(extract.inputs[-1].shape) == [4, 12]
    assert list(extract.outputs[0].shape) == [4, 512]
    assert [list(t.shape) for t in manifest.tensors] == [[3], [3, 1024]]


@pytest.mark.slow
def test_the_same_export_again_gives_the_same_bytes(
    tmp_path: Path, concatenated: Bundle, small_spec: ExportSpec
) -> None:
    again = export_bundle(tmp_path / "again", replace(small_spec, concatenated=K))
    other = export_bundle(tmp_path / "other", replace(small_spec, concatenated=K, seed=1))

    assert again.id == concatenated.id
    assert np.any(other.initial()["classifier.weight"] != concatenated.initial()["classifier.weight"])


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ([nn.Linear(48, 8), nn.Linear(8, 3), nn.Hardsigmoid()], "the logits are not the output of '2'"),
        ([nn.Linear(48, 3)], "the model is a classifier alone, so there is no extractor"),
    ],
)
def test_a_model_that_cannot_be_concatenated_is_refused(tmp_path: Path, layers: list[nn.Module], reason: str) -> None:
    with pytest.raises(NotExportable, match=reason):
        whole_bundle(tmp_path / "bundle", *layers, concatenated=2)

    assert list(tmp_path.iterdir()) == []
