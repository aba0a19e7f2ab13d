"""A bundle's `step` against an ordinary PyTorch loop over the same batches, in a process that keeps to one core.

Floor: the same network as an `nn.Module`, `backward` and `torch.optim.SGD`. Both start from the same weights and must
end with the same ones.
"""

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.row import Sample, in_turns
from fedlens_edge_client.engines import Rows
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_proto.manifest import Bundle

CLASSES = 10
RATE, MOMENTUM = 0.01, 0.9
REPEATS = 9
FLOOR = "nn.Module and torch.optim.SGD"


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of both sides, sent to the process that does it."""

    bundle: Path
    network: nn.Module
    forward: Callable[[nn.Module, Tensor], Tensor]  # inputs to logits, as the bundle's programs do it
    inputs: np.ndarray[Any, Any]  # float32 [N, ...]
    batch: int
    epochs: int
    weight_decay: float
    atol: float  # between the weights at the end
    scale: float  # from seconds to the row's unit


def compare(work: Work) -> tuple[Sample, Sample]:
    """The plain loop and the bundle's step, measured in turns."""
    with multiprocessing.get_context("spawn").Pool(1, keep_freed_memory) as pool:
        found: tuple[Sample, Sample] = pool.apply(_compare, (work,))
    return found


def _compare(work: Work) -> tuple[Sample, Sample]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    engine = TorchEngine(Bundle.open(work.bundle))
    initial = {name: np.array(value) for name, value in engine.bundle.initial().items()}
    generator = np.random.default_rng(0)
    count = len(work.inputs)
    rows = Rows(inputs=work.inputs, labels=generator.integers(0, CLASSES, count))
    orders = [generator.permutation(count) for _ in range(work.epochs)]
    batches = [order[start : start + work.batch] for order in orders for start in range(0, count, work.batch)]
    hyper = {
        "lr_extractor": RATE,
        "lr_classifier": RATE,
        "momentum": MOMENTUM,
        "weight_decay": work.weight_decay,
    }
    network = work.network

    def plain() -> dict[str, np.ndarray[Any, Any]]:
        network.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in initial.items()})
        network.train()
        optimiser = torch.optim.SGD(network.parameters(), RATE, momentum=MOMENTUM, weight_decay=work.weight_decay)
        inputs, labels = torch.from_numpy(rows.inputs), torch.from_numpy(rows.labels)
        for batch in batches:
            index = torch.from_numpy(batch)
            optimiser.zero_grad()
            functional.cross_entropy(work.forward(network, inputs[index]), labels[index]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}

    def bundled() -> dict[str, np.ndarray[Any, Any]]:
        return engine.train("step", initial, rows, batches, hyper, {})

    expected, found = plain(), bundled()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=work.atol, err_msg=name)
    return in_turns(REPEATS, plain, bundled, scale=work.scale)
