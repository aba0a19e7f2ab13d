"""A study on Ray, on two nodes of one core each, against the same study in two processes.

What is measured begins with the first run and ends with the last one's result. As in `fedlens compare`, each run here
has a new process, while Ray keeps its workers from turn to turn.
"""

import os
import shutil
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from bench.row import Row, Skipped, against_floor, in_turns
from fedlens.compare.bundles import export
from fedlens.compare.on_ray.cluster import RayConfig, alone, connected
from fedlens.compare.on_ray.runs import run_on_ray
from fedlens.compare.photos import study_photos
from fedlens.compare.plan import RUNS, plan
from fedlens.compare.study import parse_study
from fedlens.compare.work import carry_out
from fedlens.jobs import Job, JobEnded, JobProgress, run_jobs

WORKERS, REPEATS = 2, 5
STUDY = {
    "name": "ray",
    "clients": 10,
    "rounds": 40,
    "seeds": [1, 2],
    "photos": {"source": "digits"},
    "partition": {"name": "camera-iid", "per_class": 10},
    "model": {"names": ["lenet5"], "input_size": 32},
    "hyper": {"lr_extractor": 0.05, "lr_classifier": 0.05},
    "methods": {"fedavg": {"method": "fedavg"}, "fedper": {"method": "fedper"}},
}


def measure(folder: Path) -> list[Row]:
    """One row."""
    if find_spec("ray") is None:
        raise Skipped("Ray is not installed")
    os.environ.update(alone())
    cluster_of_nodes = import_module("ray.cluster_utils").Cluster
    study, out = parse_study(STUDY, folder, "ray"), folder / "out"
    planned = plan(study, study_photos(study.photos, folder / "cache", out), out)
    _follow(run_jobs([Job(spec.name, partial(export, out, spec)) for spec in planned.bundles], WORKERS))
    cluster = cluster_of_nodes(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(WORKERS):
            cluster.add_node(num_cpus=1)
        config = RayConfig(address=cluster.address)
        with connected(config, WORKERS) as base:

            def here() -> None:
                shutil.rmtree(out / RUNS, ignore_errors=True)
                _follow(run_jobs([Job(run.name, partial(carry_out, out, run, "cpu")) for run in planned.runs], WORKERS))

            def on_ray() -> None:
                shutil.rmtree(out / RUNS, ignore_errors=True)
                _follow(run_on_ray(out, planned.runs, "cpu", base, config))

            floor, measured = in_turns(REPEATS, here, on_ray)
    finally:
        cluster.shutdown()
    name = f"study of {len(planned.runs)} runs on Ray, two nodes of one core"
    return [against_floor(name, floor, measured, 1.05, "two local workers", unit="s")]


def _follow(messages: Iterator[JobProgress | JobEnded]) -> None:
    for message in messages:
        if isinstance(message, JobEnded) and message.failure is not None:
            raise RuntimeError(f"{message.job}: {message.failure}")
