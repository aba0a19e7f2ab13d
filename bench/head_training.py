"""Training a 576-512-10 head in batches of 16 on one core: the bundle's `step` against an ordinary PyTorch loop.

Floor: the same head as an `nn.Module`, `torch.optim.SGD` with momentum and weight decay, `backward`. Both see the same
batches from the same weights, and must end with the same weights.
"""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.row import Row, Sample, against_floor, in_turns
from fedlens_edge_client.engines import Rows
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export import backbones
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_proto.manifest import Bundle

FEATURES, CLASSES, BATCH = 576, 10, 16
ROWS, EPOCHS, REPEATS = 800, 4, 9
RATE, MOMENTUM, DECAY = 0.01, 0.9, 1e-4


class Backbone(nn.Module):
    """The smallest that gives 576 features; nothing of it is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, FEATURES, 1)

    def forward(self, photos: Tensor) -> Tensor:
        """Features, float32 [N, 576]."""
        features: Tensor = self.conv(photos).mean((2, 3))
        return features


def measure(folder: Path) -> list[Row]:
    """One row, taken in a process that keeps to one core."""
    training = Training(class_names=tuple(f"class {i}" for i in range(CLASSES)), batch=BATCH)
    head = backbones.build_head("hidden", FEATURES, CLASSES, seed=0)
    frozen_backbone_bundle(folder / "bundle", Backbone(), head, training, input_size=16)
    with multiprocessing.get_context("spawn").Pool(1, keep_freed_memory) as pool:
        plain, bundled = pool.apply(_compare, (folder / "bundle",))
    steps = EPOCHS * ROWS // BATCH
    name = f"head training, 576-512-10, batch 16, one core, {steps} steps"
    return [against_floor(name, plain, bundled, 1.2, "nn.Module and torch.optim.SGD")]


def _compare(folder: Path) -> tuple[Sample, Sample]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    engine = TorchEngine(Bundle.open(folder))
    initial = {name: np.array(value) for name, value in engine.bundle.initial().items()}
    generator = np.random.default_rng(0)
    rows = Rows(
        inputs=generator.standard_normal((ROWS, FEATURES), np.float32), labels=generator.integers(0, CLASSES, ROWS)
    )
    orders = [generator.permutation(ROWS) for _ in range(EPOCHS)]
    batches = [order[start : start + BATCH] for order in orders for start in range(0, ROWS, BATCH)]
    hyper = {"lr_extractor": RATE, "lr_classifier": RATE, "momentum": MOMENTUM, "weight_decay": DECAY}

    def plain() -> dict[str, np.ndarray]:
        head = backbones.build_head("hidden", FEATURES, CLASSES, seed=0)
        head.load_state_dict({name: torch.from_numpy(value) for name, value in initial.items()})
        optimiser = torch.optim.SGD(head.parameters(), RATE, momentum=MOMENTUM, weight_decay=DECAY)
        inputs, labels = torch.from_numpy(rows.inputs), torch.from_numpy(rows.labels)
        for batch in batches:
            index = torch.from_numpy(batch)
            optimiser.zero_grad()
            functional.cross_entropy(head(inputs[index]), labels[index]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return {name: value.detach().numpy() for name, value in head.state_dict().items()}

    def bundled() -> dict[str, np.ndarray]:
        return engine.train("step", initial, rows, batches, hyper, {})

    expected, found = plain(), bundled()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-5)
    return in_turns(REPEATS, plain, bundled, scale=1000)
