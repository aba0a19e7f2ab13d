"""The vetting of the largest programs that a client may get: ResNet-50 as a whole with the exact Per-FedAvg gradient.

Floor: torch's own loading of the same files, which follows the vetting. Each turn vets as a new process would: nothing
is known of earlier calls, but what torch imports on first use is there, as in a child that waits.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from bench.row import Row, against_target, in_turns
from fedlens_export import objectives
from fedlens_export.models import whole_models
from fedlens_export.network import CENTRED, Network
from fedlens_export.programs import lowering, optimisers, parity, steps
from fedlens_proto.programs import pt2_forms, pt2_loading, pt2_values

MODEL, OBJECTIVE = "resnet50_whole", "meta_hf"
SIDE, BATCH, CLASSES = 32, 16, 10
REPEATS = 3
MOST_S = 2.0


def measure(folder: Path) -> Iterator[Row]:
    """One row. Lowering the programs takes minutes."""
    files = _programs()

    def vet() -> None:
        pt2_forms.results.cache_clear()
        for raw in files:
            pt2_values.vetted(raw)

    def load() -> None:
        for raw in files:
            pt2_loading.load(raw)

    floor, found = in_turns(REPEATS, load, vet)
    yield against_target(
        f"vetting of a bundle's {len(files)} programs, {MODEL}, {OBJECTIVE}, {sum(map(len, files)) / 1e6:.1f} MB",
        floor,
        found,
        MOST_S,
        "torch loads the same",
        unit="s",
        digits=2,
    )


def _programs() -> Sequence[bytes]:
    torch.set_num_threads(1)
    network = Network(whole_models.build(MODEL, CLASSES, SIDE, seed=0), (3, SIDE, SIDE), CENTRED)
    objective, optimiser = objectives.by_name(OBJECTIVE), optimisers.SGD
    known, hyper = {**network.weights, **network.buffers}, steps.hyper(objective, optimiser)
    sources = [
        *steps.trains(network, objective, optimiser, BATCH, CLASSES, objective.views),
        steps.predict(network, BATCH, CLASSES),
    ]
    return [
        lowering.lower(source.name, source.function, parity.examples(source, known, hyper, seed=0))
        for source in sources
    ]
