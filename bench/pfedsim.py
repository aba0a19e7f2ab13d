"""pFedSim: what its server's arithmetic costs, and what its client's training costs beside an ordinary PyTorch loop.

Floors: the cosines alone as matrix products; the same LeNet-5 as an `nn.Module` with `torch.optim.SGD`, on the same
batches from the same weights, which must end with the same weights.
"""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench import models
from bench.row import Row, Sample, against_floor, in_turns
from fedlens_edge_client.engines import Rows
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_export import models as networks
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle
from fedlens_server.methods import METHODS, State, TaskPlan, Tools, Update
from fedlens_server.task_settings import TaskSettings

CLIENTS, MEMBERS, CLASSES, FEATURES = 1000, 100, 10, 512
MOST_MS = 50.0
IMAGES, SIDE, BATCH, EPOCHS = 320, 32, 32, 5
RATE, MOMENTUM = 0.01, 0.9
REPEATS = 9


def similarity(folder: Path) -> list[Row]:
    """The rule of one round of personalisation, from updates to the new state."""
    bundle = models.inert_bundle(models.linear_network(), folder / "bundle")
    settings = TaskSettings(method="pfedsim", rounds=2, population=CLIENTS, cohort=MEMBERS, options={"warm_up": 0})
    task = TaskPlan(settings=settings, manifests=(bundle.manifest,))
    method = METHODS["pfedsim"](task)
    (phase,) = method.phases(task)
    generator = np.random.default_rng(0)
    ids = [i.to_bytes(32, "big") for i in range(CLIENTS)]
    tools = Tools(generator=generator, population=tuple(ids), initial=bundle.initial())
    state = method.begin(phase, {}, tools)
    for start in range(0, CLIENTS, MEMBERS):
        state = method.aggregate(phase, state, _updates(generator, ids[start : start + MEMBERS]), tools)
    updates = _updates(generator, sorted(ids[i] for i in generator.permutation(CLIENTS)[:MEMBERS]))
    phi = np.array([update.tensors["fc.weight"] for update in updates], np.float64).swapaxes(0, 1)

    def cosines() -> Array:
        norms = np.linalg.norm(phi, axis=2)
        found: Array = phi @ phi.swapaxes(1, 2) / (norms[:, :, None] * norms[:, None, :])
        return found

    def rule() -> State:
        return method.aggregate(phase, state, updates, tools)

    floor, measured = in_turns(REPEATS, cosines, rule, scale=1000)
    return [
        Row(
            measure=f"pFedSim similarity update, {CLIENTS:,} clients with a {FEATURES}x{CLASSES} classifier, "
            f"{MEMBERS} in the round",
            unit="ms",
            digits=1,
            floor=floor,
            floor_is="cosines as matrix products",
            measured=measured,
            judged=measured.median,
            judged_text=f"{measured.median:.1f} ms",
            target=MOST_MS,
            target_text=f"<= {MOST_MS:g} ms",
        )
    ]


def training(folder: Path) -> list[Row]:
    """Local training of LeNet-5 with BatchNorm, taken in a process that keeps to one core."""
    names = tuple(f"class {i}" for i in range(CLASSES))
    export_bundle(folder / "bundle", ExportSpec(model="lenet5_bn", class_names=names, batch=BATCH))
    with multiprocessing.get_context("spawn").Pool(1, keep_freed_memory) as pool:
        plain, bundled = pool.apply(_compare, (folder / "bundle",))
    name = f"pFedSim client work per image and epoch, LeNet-5, batch {BATCH}, {EPOCHS} epochs, one core"
    return [against_floor(name, plain, bundled, 1.05, "nn.Module and torch.optim.SGD", unit="µs")]


def _updates(generator: np.random.Generator, ids: list[bytes]) -> list[Update]:
    shapes = models.linear_network()
    return [
        Update(
            client=client,
            photo_count=1,
            tensors={name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()},
        )
        for client in ids
    ]


def _compare(folder: Path) -> tuple[Sample, Sample]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    engine = TorchEngine(Bundle.open(folder))
    initial = {name: np.array(value) for name, value in engine.bundle.initial().items()}
    generator = np.random.default_rng(0)
    rows = Rows(
        inputs=generator.random((IMAGES, 3, SIDE, SIDE), np.float32), labels=generator.integers(0, CLASSES, IMAGES)
    )
    orders = [generator.permutation(IMAGES) for _ in range(EPOCHS)]
    batches = [order[start : start + BATCH] for order in orders for start in range(0, IMAGES, BATCH)]
    hyper = {"lr_extractor": RATE, "lr_classifier": RATE, "momentum": MOMENTUM}
    network = networks.build("lenet5_bn", CLASSES, SIDE, seed=0)

    def plain() -> dict[str, np.ndarray[Any, Any]]:
        network.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in initial.items()})
        network.train()
        optimiser = torch.optim.SGD(network.parameters(), RATE, momentum=MOMENTUM)
        inputs, labels = torch.from_numpy(rows.inputs), torch.from_numpy(rows.labels)
        for batch in batches:
            index = torch.from_numpy(batch)
            optimiser.zero_grad()
            logits = network((inputs[index] - 0.5) * 4)
            functional.cross_entropy(logits, labels[index]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}

    def bundled() -> dict[str, np.ndarray[Any, Any]]:
        return engine.train("step", initial, rows, batches, hyper, {})

    expected, found = plain(), bundled()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
    return in_turns(REPEATS, plain, bundled, scale=1e6 / (IMAGES * EPOCHS))
