"""A round of very many emulated phones over HTTP, all on the two cores of one machine with their server.

Each phone is a whole client: its own identity, state folder, outbox and connection. It trains a 1280-10 head on the
features of 32 photos, for one epoch of batches of 16, and sends it as f16. In the first round phones enrol, and the
features of photos are computed; the measured round comes after it.
"""

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.fleets import draw_noise, fleet
from bench.head_training import Backbone
from bench.row import Row, Sample, against_target, differences
from bench.server_process import cpu_seconds, serving, status_mb
from fedlens_edge_client.emulation.fleet.running import run_fleet
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones

# A client has five files open, and systems allow a process 20,000 or fewer.
PHONES, WORKERS, ROUNDS = 10_000, 4, 2
FEATURES, CLASSES, BATCH, SIDE = 1280, 10, 16, 16
# Of the head's classes, so that each phone has 32 photos.
WITH_PHOTOS, PER_CLASS = 8, 4
MOST_S, MOST_MB = 60, 600
LIMITS = (
    "max_polls = 20_000\nmax_connections = 20_000\nmax_connections_per_address = 20_000\n"
    "enrolments_per_address = 1_000_000\n"
)


def measure(folder: Path, phones: int = PHONES) -> Iterator[Row]:
    """The time of a round, and the server's memory."""
    generator = np.random.default_rng(0)
    for side, count in (("train", 10 * PER_CLASS), ("test", 1)):
        for label in range(WITH_PHOTOS):
            draw_noise(folder / "photos" / side / f"class {label}", count, SIDE, generator)
    training = Training(class_names=tuple(f"class {label}" for label in range(CLASSES)), batch=BATCH)
    head = backbones.build_head("linear", FEATURES, CLASSES, seed=0)
    bundle = frozen_backbone_bundle(folder / "bundle", Backbone(FEATURES), head, training, input_size=SIDE)
    partition = Partition(name=PartitionName.CAMERA_IID, seed=0, per_class=PER_CLASS, test_per_class=1)
    with serving(folder / "server", LIMITS) as server:
        settings = {"rounds": ROUNDS, "population": phones, "codec": "f16", "epochs": 1}
        server.create_task(bundle, settings)
        where = {"server": server.url, "token": server.trainer_token, "workers": WORKERS}
        before = _children_s()
        run_fleet(fleet(PhotoPool.open(folder / "photos"), partition, phones, folder / "fleet", **where))
        fleet_s = _children_s() - before
        took = Sample(differences(server.round_ends()))
        memory, used = Sample((status_mb(server.pid, "VmHWM"),)), cpu_seconds(server.pid)
    name = f"{phones:,} emulated phones, 32 photos' features each, head 1280-10 sent as f16"
    none = Sample((0.0,))
    note = f"all {ROUNDS} rounds: {fleet_s:.0f} s of a core in the fleet, {used:.0f} s in the server"
    yield against_target(f"{name}: a round", none, took, MOST_S, "none", unit="s", digits=1, note=note)
    yield against_target(f"{name}: the server's memory", none, memory, MOST_MB, "none", unit="MB", digits=0)


def _children_s() -> float:
    """Processor time of child processes that have ended, user and system, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
