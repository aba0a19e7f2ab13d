"""Local plans on one core: what `derive` costs beside training, and IFCA's round beside FedAvg's.

Floors: one epoch of training on the same photos by the same engine; and FedAvg's round of the same client.
"""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bench.fleets import draw_noise
from bench.head_training import Backbone
from bench.row import Row, Sample, against_floor, against_target, in_turns
from bench.server_process import serving
from bench.wire_bytes import Recorder
from fedlens_edge_client.client.client import EdgeClient
from fedlens_edge_client.client.events import Downloaded, Event, RoundReported
from fedlens_edge_client.client.http_transport import HttpTransport
from fedlens_edge_client.client.transport import Blobs, Transport
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_edge_client.engines import Engine, Rows
from fedlens_edge_client.engines.executorch import ExecutorchEngine
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.policy import EMULATED
from fedlens_edge_client.storage.cache import Cache
from fedlens_edge_client.storage.folder_album import FolderAlbum
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import check_in_pb2, update_pb2

CLASSES, PHOTOS, BATCH, SIDE = 10, 200, 16, 16
REPEATS = 15
RATES = {"lr_extractor": 0.01, "lr_classifier": 0.01}
# Most times an epoch.
DERIVE_TARGETS = {"torch": (TorchEngine, 0.3), ".pte": (ExecutorchEngine, 0.35)}
CENTRES, FEATURES, UNMEASURED = 5, 512, 3
PAYLOAD = 2 * (FEATURES * CLASSES + CLASSES)
MOST_BYTES, MOST_TIMES = 4000, 1.6


def derive(folder: Path) -> Iterator[Row]:
    """FedProto's class means over a client's photos, with either engine."""
    training = Training(class_names=_class_names(), batch=BATCH, objective="prototypes", pte=True)
    head = backbones.build_head("hidden", 576, CLASSES, seed=0)
    frozen_backbone_bundle(folder / "bundle", Backbone(), head, training, input_size=SIDE)
    for name, (engine, most) in DERIVE_TARGETS.items():
        with multiprocessing.get_context("spawn").Pool(1, keep_freed_memory) as pool:
            epoch, means = pool.apply(_compare, (engine, folder / "bundle"))
        measure = f"class means of {PHOTOS} photos, FC 576-512-10, {name}"
        yield against_floor(measure, epoch, means, most, f"an epoch in batches of {BATCH}")


def ifca(folder: Path) -> Iterator[Row]:
    """Bytes down and time of a client's round with five centres, over plain HTTP, in turns with FedAvg's."""
    for label in range(CLASSES):
        draw_noise(folder / "photos" / f"class {label}", PHOTOS // CLASSES, SIDE, np.random.default_rng(label))
    torch.set_num_threads(1)
    keep_freed_memory()
    bundles = {}
    for method, candidates in {"fedavg": 0, "ifca": CENTRES}.items():
        training = Training(class_names=_class_names(), batch=BATCH, candidates=candidates)
        head = backbones.build_head("linear", FEATURES, CLASSES, seed=0)
        bundles[method] = frozen_backbone_bundle(folder / method, Backbone(FEATURES), head, training, input_size=SIDE)
    floor, found = asyncio.run(_take_part(bundles, folder))
    what = f"IFCA with {CENTRES} centres, linear head {FEATURES}x{CLASSES}, f16"
    payload = CENTRES * PAYLOAD
    yield against_target(
        f"server to client, a whole round, plain HTTP, {what}",
        Sample((payload,)),
        Sample(tuple(found.received)),
        payload + MOST_BYTES,
        "tensor bytes of all centres",
        unit="bytes",
        digits=0,
        judged_text=f"payload + {median(found.received) - payload:.0f}",
        target_text=f"<= payload + {MOST_BYTES}",
    )
    measure = f"from assignment to receipt, {PHOTOS} photos, 1 epoch, {what}"
    floor_ms, found_ms = (Sample(tuple(record.times)) for record in (floor, found))
    yield against_floor(measure, floor_ms, found_ms, MOST_TIMES, "the same with FedAvg")


@dataclass
class _Record:
    """What one client sees of its rounds: times in ms, and bytes received."""

    recorder: Recorder
    cache: Path
    started: float = 0.0
    times: list[float] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    _models: set[bytes] = field(default_factory=set[bytes])
    _received: int = 0

    def ended(self) -> None:
        self.times.append(1000 * (time.perf_counter() - self.started))
        so_far = sum(map(len, self.recorder.received))
        self.received.append(so_far - self._received)
        self._received = so_far

    def happened(self, event: Event) -> None:
        """Forget models as soon as they have been read: those of a large fleet have all changed by the next round."""
        if isinstance(event, Downloaded) and PAYLOAD < event.size < 2 * PAYLOAD:
            self._models.add(event.sha256)
        if isinstance(event, RoundReported):
            for digest in self._models:
                Cache(self.cache, 0).path(digest).unlink(missing_ok=True)


class _Recording(TransportWrapper):
    """Takes the time from the answer that holds an assignment to the receipt of its update."""

    def __init__(self, inner: Transport, record: _Record) -> None:
        super().__init__(inner)
        self._record = record

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        response = await super().check_in(request)
        self._record.started = time.perf_counter()
        return response

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        receipt = await super().put_update(task, round_number, header, blobs)
        self._record.ended()
        return receipt


async def _take_part(bundles: Mapping[str, Bundle], folder: Path) -> list[_Record]:
    """A client for each method, one after the other in each round; by method."""
    async with AsyncExitStack() as stack:
        records, clients, servers = [], [], []
        for method, bundle in bundles.items():
            state = folder / f"{method} state"
            server = stack.enter_context(serving(state / "server"))
            settings = {"rounds": UNMEASURED + REPEATS, "population": 1, "epochs": 1, "hyper": RATES, "codec": "f16"}
            server.create_task(bundle, {**settings, "download_codec": "f16", "method": method})
            record = _Record(recorder := Recorder(server.url), state / "cache")
            between, secret = await stack.enter_async_context(recorder.listening()), bytes(32)
            client = EdgeClient(
                between,
                state / "client",
                FolderAlbum(folder / "photos"),
                publishers=TRUST_SERVER,
                enrolment_token=server.trainer_token,
                secret=secret,
                transport=_Recording(HttpTransport(between, secret), record),
                policy=EMULATED,
                in_process=True,
                on_event=record.happened,
                cache=record.cache,
            )
            clients.append(await stack.enter_async_context(client))
            records.append(record)
            servers.append(server)
        for _ in range(UNMEASURED + REPEATS):
            for client, server in zip(clients, servers, strict=True):
                await client.run_once()
                await server.idle()  # the other method's client must not share the processors with this commit
    for record in records:
        del record.times[:UNMEASURED], record.received[:UNMEASURED]
    return records


def _compare(engine_of: type[TorchEngine] | type[ExecutorchEngine], folder: Path) -> tuple[Sample, Sample]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    engine: Engine = engine_of(Bundle.open(folder))
    generator = np.random.default_rng(0)
    rows = Rows(generator.standard_normal((PHOTOS, 576), np.float32), generator.integers(0, CLASSES, PHOTOS))
    weights = dict(engine.bundle.initial())
    batches = [np.arange(start, min(start + BATCH, PHOTOS)) for start in range(0, PHOTOS, BATCH)]

    def means() -> Mapping[str, Any]:
        sums = engine.derive("class_sums", {}, {"model": weights}, rows)
        return engine.derive("class_means", {}, {"class_sums": sums})

    prototypes = means()
    assert prototypes["has"].all()
    epoch = partial(engine.train, "step", weights, rows, batches, RATES, {"prototypes": prototypes})
    return in_turns(REPEATS, epoch, means, scale=1000)


def _class_names() -> tuple[str, ...]:
    return tuple(f"class {label}" for label in range(CLASSES))
