"""pFedSim: what its server's arithmetic costs, and what its client's training costs beside an ordinary PyTorch loop.

Floors: the cosines alone as matrix products; the plain loop.
"""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from bench import models, plain_loop
from bench.row import Row, against_floor, against_target, in_turns
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.models import whole_models as networks
from fedlens_proto.blob import Array
from fedlens_server.methods import pfedsim
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import State, TaskPlan, Tools, Update
from fedlens_server.planning.one_thread import use_one_thread
from fedlens_server.planning.options import read
from fedlens_server.planning.task_settings import TaskSettings

CLIENTS, MEMBERS, FEATURES = 1000, 100, 512
MOST_MS = 50.0
IMAGES, SIDE, BATCH, EPOCHS = 320, 32, 32, 5
REPEATS = 9


def similarity(folder: Path) -> list[Row]:
    """The rule of one round of personalisation, from updates to the new state."""
    use_one_thread()  # as a server does
    bundle = models.inert_bundle(models.linear_network(), folder / "bundle")
    settings = TaskSettings(method="pfedsim", rounds=2, population=CLIENTS, cohort=MEMBERS, options={"warm_up": 0})
    task = TaskPlan(settings=settings, manifests=(bundle.manifest,), options=read(settings, pfedsim.OPTIONS))
    method = pfedsim.for_task(task)
    (phase,) = method.phases
    generator = np.random.default_rng(0)
    ids = [i.to_bytes(32, "big") for i in range(CLIENTS)]
    tools = Tools(generator=generator, population=tuple(ids), initial=bundle.initial())
    state = method.begin(phase, State(), tools)
    for start in range(0, CLIENTS, MEMBERS):
        state = method.aggregate(phase, state, _updates(generator, ids[start : start + MEMBERS]), tools)
    updates = _updates(generator, sorted(ids[i] for i in generator.permutation(CLIENTS)[:MEMBERS]))
    phi = np.array([update.values[WEIGHTS]["fc.weight"] for update in updates], np.float64).swapaxes(0, 1)

    def cosines() -> Array:
        norms = np.linalg.norm(phi, axis=2)
        found: Array = phi @ phi.swapaxes(1, 2) / (norms[:, :, None] * norms[:, None, :])
        return found

    def rule() -> State:
        return method.aggregate(phase, state, updates, tools)

    floor, measured = in_turns(REPEATS, cosines, rule, scale=1000)
    name = (
        f"pFedSim similarity update, {CLIENTS:,} clients with a {FEATURES}x{plain_loop.CLASSES} classifier, "
        f"{MEMBERS} in the round"
    )
    return [against_target(name, floor, measured, MOST_MS, "cosines as matrix products", unit="ms", digits=1)]


def training(folder: Path) -> list[Row]:
    """Local training of LeNet-5 with BatchNorm."""
    names = tuple(f"class {i}" for i in range(plain_loop.CLASSES))
    export_bundle(folder / "bundle", ExportSpec(model="lenet5_bn", class_names=names, batch=BATCH))
    plain, bundled = plain_loop.compare(
        plain_loop.Work(
            bundle=folder / "bundle",
            network=networks.build("lenet5_bn", plain_loop.CLASSES, SIDE, seed=0),
            forward=_normalised,
            inputs=np.random.default_rng(0).random((IMAGES, 3, SIDE, SIDE), np.float32),
            batch=BATCH,
            epochs=EPOCHS,
            weight_decay=0.0,
            atol=1e-4,
            scale=1e6 / (IMAGES * EPOCHS),
        )
    )
    name = f"pFedSim client work per image and epoch, LeNet-5, batch {BATCH}, {EPOCHS} epochs, one core"
    return [against_floor(name, plain, bundled, 1.05, plain_loop.FLOOR, unit="µs")]


def _normalised(network: nn.Module, photos: Tensor) -> Tensor:
    logits: Tensor = network((photos - 0.5) * 4)
    return logits


def _updates(generator: np.random.Generator, ids: list[bytes]) -> list[Update]:
    shapes = models.linear_network()
    return [
        Update(
            client=client,
            num_examples=1,
            values={WEIGHTS: {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}},
        )
        for client in ids
    ]
