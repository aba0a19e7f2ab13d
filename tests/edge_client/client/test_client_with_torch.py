"""The whole client with the engine that it has by default."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fedlens_edge_client import EdgeClient
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_proto.blob import Blob
from tests.edge_client.fakes import FakeServer, fedavg_plan


class Colours(torch.nn.Module):
    """A backbone of three features, the mean of each colour through a fixed layer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(3, 3, bias=False)
        torch.nn.init.eye_(self.mix.weight)

    def forward(self, photos: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.mix(photos.mean(dim=(2, 3)))
        return mixed


class Head(torch.nn.Module):
    """One FC layer with a name."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(features)
        return logits


async def test_a_frozen_backbone_bundle_trains_its_head_with_torch(
    client_of: Callable[..., EdgeClient], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    training = Training(class_names=("cat", "dog"), batch=4)
    bundle = frozen_backbone_bundle(tmp_path / "bundle", Colours(), Head(), training, 16)
    plan = fedavg_plan(20)
    for hyper in bundle.manifest.hyper_parameters:
        if hyper.name.startswith("lr"):
            plan.stages[0].hyper_values.add(name=hyper.name, value=0.1)
    async with FakeServer(bundle, plan, rounds=2) as server, client_of(server.url, engine_factory=None) as client:
        await client.run()

    before, after = server.header(1).evaluations[0], server.header(2).evaluations[1]
    assert after.loss < before.loss
    assert after.correct == after.count == 4
    weights = [Blob.from_bytes(server.blob(number))["fc.weight"] for number in (1, 2)]
    assert not np.array_equal(*weights)
