"""A LeNet-5 round of ten clients beside Flower's simulation of the same, on Ray, all with two cores.

Flower runs in an environment of its own, whose Python `FLOWER_PYTHON` names: its pins are not ours. FedLens does more
in a round: it evaluates before and after training, keeps what a kill must not cost, and over HTTP is the real server.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench import emulated_round
from bench.emulated_round import BATCH, CLIENTS, PER_CLASS, RATE, ROUNDS, UNMEASURED, WORKERS
from bench.row import Row, Sample, Skipped, against_floor
from fedlens.compare.on_ray.cluster import HERE, RayConfig
from fedlens.compare.session import SessionConfig, run_study
from fedlens.compare.study import parse_study
from fedlens_export.exporting import ExportSpec, export_bundle

FLOWER = "1.41.0"
EPOCHS = 1
_TIMEOUT_S = 600


def measure(folder: Path) -> Iterator[Row]:
    """One row for a fleet over HTTP, and one for a study on Ray."""
    python = os.environ.get("FLOWER_PYTHON")
    if not python:
        raise Skipped(f"FLOWER_PYTHON names no Python with flwr[simulation]=={FLOWER} and torch")
    photos = folder / "photos"
    emulated_round.draw_photos(photos)
    names = tuple(sorted(path.name for path in (photos / "train").iterdir()))
    bundle = export_bundle(folder / "bundle", ExportSpec(model="lenet5", class_names=names, batch=BATCH))
    before = _flower(python)
    over_http = emulated_round.fleet_rounds(EPOCHS, bundle, photos, folder / "http")
    on_ray = _study(folder, photos)
    floor = Sample(before + _flower(python))
    name = f"LeNet-5 round, {CLIENTS} clients x 250 images, batch {BATCH}, {EPOCHS} epoch"
    for measured, how in ((over_http, "a fleet over HTTP"), (on_ray, "a study whose clients are Ray tasks")):
        yield against_floor(f"{name}, {how}", floor, measured, 1.0, f"Flower {FLOWER}'s simulation")


def _flower(python: str) -> tuple[float, ...]:
    script = Path(__file__).with_name("flower_round.py")
    command = [python, str(script), *map(str, (CLIENTS, ROUNDS, EPOCHS, WORKERS))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return tuple(1000 * seconds for seconds in found[UNMEASURED:])


def _study(folder: Path, photos: Path) -> Sample:
    study = {
        "name": "flower",
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "epochs": EPOCHS,
        "seeds": [1],
        "photos": {"source": str(photos)},
        "partition": {"name": "camera-iid", "per_class": PER_CLASS, "test_per_class": 1},
        "model": {"names": ["lenet5"], "input_size": emulated_round.SIDE},
        "hyper": {"lr_extractor": RATE, "lr_classifier": RATE},
        "methods": {"fedavg": {"method": "fedavg"}},
    }
    out = folder / "study"
    config = SessionConfig(out=out, cache=folder, workers=WORKERS, ray=RayConfig(address=HERE))
    run_study(parse_study(study, folder, "flower"), config, Console(quiet=True))
    (run,) = json.loads((out / "results.json").read_text())["runs"]
    # The last entry is the evaluation of the last model.
    return Sample(tuple(1000 * run["made"]["seconds"][str(number)] for number in range(1 + UNMEASURED, ROUNDS + 1)))
