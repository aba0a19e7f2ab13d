"""The savings and the cost of int8 differences: a linear head of 512 x 10 on frozen features.

Bytes: one `PUT update` over plain HTTP, as in `bench.wire_bytes`. Accuracy: two federations of a real server and a
real fleet on scikit-learn's digits, equal but for the codec, non-iid cameras; the final global model on the photos that
all clients hold for tests, in points. The floor is the run in float32.
"""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench import models, wire_bytes
from bench.fleets import fleet
from bench.row import Row, Sample, against_target
from bench.server_process import serving, whole_rounds
from fedlens.digits import SIDE, write_digits
from fedlens_edge_client.emulation.fleet.running import run_fleet
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones
from fedlens_proto import blob
from fedlens_proto.difference import Differences
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import blob_pb2

FEATURES, CLASSES, BATCH = 512, 10, 16
CLIENTS, ROUNDS, PER_CLASS, TEST_PER_CLASS, WORKERS = 10, 20, 12, 15, 2
RATES = {"lr_extractor": 0.01, "lr_classifier": 0.01, "momentum": 0.9}
INT8 = {"codec": "int8", "difference": True}
BOTH_WAYS = {**INT8, "download_codec": "int8", "download_difference": True}
# A byte an element, a scale a class, and the biases as they are.
PAYLOAD = FEATURES * CLASSES + 4 * CLASSES + 4 * CLASSES
MOST_BYTES = 5300 + 700
MOST_POINTS = 0.5


class RandomFeatures(nn.Module):
    """512 random functions of a whole photo: what a frozen backbone is to the head."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, FEATURES, SIDE)

    def forward(self, photos: Tensor) -> Tensor:
        """Features, float32 [N, 512]."""
        return torch.relu(self.conv(photos).flatten(1))


def measure(folder: Path) -> Iterator[Row]:
    """Bytes of an update, and accuracy after 20 rounds: uploads alone in int8, then both directions."""
    inert = models.inert_bundle(models.LINEAR_HEAD, folder / "inert")
    photos = PhotoPool.open(write_digits(folder / "photos"))
    training = Training(class_names=photos.class_names, batch=BATCH)
    head = backbones.build_head("linear", FEATURES, CLASSES, seed=0)
    bundle = frozen_backbone_bundle(folder / "bundle", RandomFeatures(), head, training, input_size=SIDE)
    yield _bytes(inert, folder / "bytes")
    plain = _outcome(bundle, photos, {}, folder / "plain")
    yield _row("uploads", plain, _outcome(bundle, photos, INT8, folder / "uploads"))
    yield _row("uploads and downloads", plain, _outcome(bundle, photos, BOTH_WAYS, folder / "both"))


def _bytes(bundle: Bundle, folder: Path) -> Row:
    initial = bundle.initial()
    changed = Differences(models.tensors(models.LINEAR_HEAD, seed=2), initial)
    upload = blob.encode(changed, floats=blob_pb2.DTYPE_INT8, base=initial.digest)
    with serving(folder / "server") as server:
        server.create_task(bundle, {"rounds": 1, "population": 1, **INT8})
        sent = asyncio.run(wire_bytes.record(server.url, server.trainer_token, upload, folder))
    name = "client to server, one plain-HTTP PUT update, linear head 512x10, int8 difference"
    return against_target(
        *(name, Sample((PAYLOAD,)), Sample((sent,)), MOST_BYTES, "values, scales and biases"),
        unit="bytes",
        digits=0,
        judged_text=f"{sent}",
        target_text="<= 5300 + 700",
    )


def _outcome(bundle: Bundle, photos: PhotoPool, codecs: Mapping[str, Any], folder: Path) -> tuple[float, float]:
    """Accuracy of the final global model in percent, and its mean loss."""
    settings = {"rounds": ROUNDS, "population": CLIENTS, "epochs": 1, "hyper": RATES, "personal_evaluation": True}
    partition = Partition(name=PartitionName.CAMERA_NONIID, seed=0, per_class=PER_CLASS, test_per_class=TEST_PER_CLASS)
    with serving(folder / "server") as server:
        server.create_task(bundle, {**settings, **codecs})
        where = {"server": server.url, "token": server.trainer_token, "workers": WORKERS}
        run_fleet(fleet(photos, partition, CLIENTS, folder / "fleet", **where))
        members = whole_rounds(server.admin.show("bench"))[ROUNDS].members
    sums = [each for member in members for each in member.evaluations]
    assert all(each.label == "start" for each in sums)
    count = sum(each.count for each in sums)
    return 100 * sum(each.correct for each in sums) / count, sum(each.loss for each in sums) / count


def _row(what: str, plain: tuple[float, float], coded: tuple[float, float]) -> Row:
    change = coded[0] - plain[0]
    return Row(
        measure=f"accuracy after {ROUNDS} rounds, linear head 512x10, {what} as int8 differences",
        unit="%",
        digits=2,
        floor=Sample((plain[0],)),
        floor_is="the same in f32",
        measured=Sample((coded[0],)),
        judged=abs(change),
        judged_text=f"{change:+.2f} points",
        target=MOST_POINTS,
        target_text=f"within {MOST_POINTS} points",
        note=f"mean loss {coded[1]:.5f}, in f32 {plain[1]:.5f}",
    )
