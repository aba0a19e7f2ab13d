"""The program `extract` run by torch."""

import numpy as np
import pytest
import torch

from fedlens_edge_client.engines import BadInput, NonFinite
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export.exporting import Training, whole_model_bundle
from fedlens_export.models import whole_models
from fedlens_proto.blob import Array
from tests.edge_client.engines.conftest import CLASSES

BATCH = 32
SIDE = 16
Extractor = dict[str, Array]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return whole_models.build("lenet5", len(CLASSES), SIDE, seed=0)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, model: torch.nn.Module) -> TorchEngine:
    """LeNet-5's extractor, two of which a classifier stands on."""
    training = Training(class_names=CLASSES, batch=BATCH, concatenated=2)
    return TorchEngine(whole_model_bundle(tmp_path_factory.mktemp("concat") / "b", model, training, SIDE))


@pytest.fixture(scope="module")
def extractor(engine: TorchEngine, model: torch.nn.Module) -> Extractor:
    inputs = next(program for program in engine.bundle.manifest.programs if program.name == "extract").inputs
    tensors = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in model.state_dict().items()}
    return {slot.name: tensors[slot.name] for slot in inputs if slot.name in tensors}


def photos(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 3, SIDE, SIDE), np.float32)


def test_every_row_has_the_extractors_outputs(engine: TorchEngine, extractor: Extractor) -> None:
    found = engine.extract(extractor, photos(BATCH + 3))

    assert found.shape == (BATCH + 3, 84)
    assert found.any(axis=1).all()


def test_a_row_depends_on_its_photo_and_its_place_alone(engine: TorchEngine, extractor: Extractor) -> None:
    together = photos(BATCH)
    found = engine.extract(extractor, together)
    for place in (0, 1, 7, BATCH - 1):
        alone = np.zeros_like(together)
        alone[place] = together[place]
        among = photos(BATCH, seed=1)
        among[place] = together[place]

        assert engine.extract(extractor, alone)[place].tobytes() == found[place].tobytes()
        assert engine.extract(extractor, among)[place].tobytes() == found[place].tobytes()


def test_an_extractor_without_a_tensor_is_named(engine: TorchEngine, extractor: Extractor) -> None:
    name = min(extractor)
    with pytest.raises(BadInput, match=f"tensor '{name}' is missing from the extractor"):
        engine.extract({key: value for key, value in extractor.items() if key != name}, photos(1))


def test_outputs_that_are_not_finite_are_refused(engine: TorchEngine, extractor: Extractor) -> None:
    name = min(extractor)
    broken = extractor | {name: np.full_like(extractor[name], np.inf)}
    with pytest.raises(NonFinite, match="the extractor's outputs hold a NaN or an infinity"):
        engine.extract(broken, photos(1))
