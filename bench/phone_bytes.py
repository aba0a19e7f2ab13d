"""The bytes a phone with a linear head 512x10 in f16 moves over HTTP, as a recorder between it and a server sees it.

Floor: the tensors' bytes. FedLens: a whole client with the ExecuTorch engine and its check-ins, all headers included.
Rounds are told apart by when the client has its receipt; the first one, in which it fetches the bundle's parts, apart.
"""

import asyncio
from pathlib import Path

import numpy as np

from bench.fleets import draw_noise
from bench.head_training import Backbone
from bench.row import Row, Sample, against_target, differences
from bench.server_process import Server, serving
from bench.wire_bytes import CODECS, ELEMENTS, Recorder
from fedlens_edge_client.client.client import EdgeClient
from fedlens_edge_client.client.events import Event, RoundReported
from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.storage.folder_album import FolderAlbum
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones

FEATURES, CLASSES, SIDE = 512, 10, 16
ROUNDS = 6
MOST_KB = 12.0


def measure(folder: Path) -> list[Row]:
    """A row each way."""
    names = tuple(f"class {i}" for i in range(CLASSES))
    head = backbones.build_head("linear", FEATURES, CLASSES, seed=0)
    training = Training(class_names=names, batch=16, pte=True)
    bundle = frozen_backbone_bundle(folder / "bundle", Backbone(FEATURES), head, training, input_size=SIDE)
    generator = np.random.default_rng(0)
    for name in names:
        draw_noise(folder / "photos" / name, 4, SIDE, generator)
    with serving(folder / "server") as server:
        settings = {"rounds": ROUNDS, "population": 1, "codec": "f16", "download_codec": "f16"}
        server.create_task(bundle, settings)
        sent, received = asyncio.run(_take_part(server, folder))
    return [_row("up", sent), _row("down", received)]


def _row(way: str, totals: list[int]) -> Row:
    payload = ELEMENTS * CODECS["f16"][1]
    rounds = Sample(differences(totals))
    most = max(rounds.values) / 1000
    return against_target(
        f"bytes {way} for each round, linear head 512x10, f16",
        Sample((payload,)),
        rounds,
        MOST_KB,
        "tensor bytes",
        unit="bytes",
        digits=0,
        judged=most,
        judged_text=f"{most:.2f} KB at most",
        target_text=f"<= {MOST_KB:g} KB",
        note=f"up to the first receipt {totals[0]} bytes, with enrolment and the bundle's parts",
    )


async def _take_part(server: Server, folder: Path) -> tuple[list[int], list[int]]:
    """Bytes sent and received until each receipt."""
    recorder = Recorder(server.url)
    sent: list[int] = []
    received: list[int] = []

    def happened(event: Event) -> None:
        if isinstance(event, RoundReported):
            sent.append(sum(map(len, recorder.sent)))
            received.append(sum(map(len, recorder.received)))

    async with recorder.listening() as url:
        client = EdgeClient(
            url,
            folder / "phone",
            FolderAlbum(folder / "photos"),
            publishers=TRUST_SERVER,
            enrolment_token=server.trainer_token,
            engine=EngineName.EXECUTORCH,
            in_process=True,
            on_event=happened,
        )
        async with client:
            await client.run()
    return sent, received
