"""What methods promise of a whole federation, beside the numbers of their worked cases; in studies."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedlens.compare.run import running
from fedlens.compare.run.direct_transport import DirectTransport
from fedlens_edge_client.client.transport import Blobs
from fedlens_edge_client.emulation.partitions import Partition, PartitionName
from fedlens_edge_client.engines import Rows
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_proto.blob import Array, Blob
from fedlens_proto.v1 import update_pb2
from fedlens_proto.wire import LENGTH
from tests.integration import two_drivers
from tests.integration.conftest import FittingBundles

pytestmark = pytest.mark.slow


async def test_feddyns_dual_on_the_clients_and_on_the_server_give_the_same_bytes(
    tmp_path: Path, photos: Path, fitting: FittingBundles
) -> None:
    models = {}
    for place in ("client", "server"):
        # The third round starts from duals that two rounds have changed; nobody fails, so that no round is abandoned.
        settings = two_drivers.settings("feddyn", rounds=3, hyper={"alpha": 0.1}, options={"dual": place})
        fleet = two_drivers.fleet(tmp_path / place, photos)

        found = await running.run(fleet, settings, tuple(fitting("feddyn", {})))

        models[place] = found.model

    assert models["client"] is not None
    assert models["client"] == models["server"]


async def test_ifcas_centres_begin_different_so_that_not_all_clients_choose_the_same(
    tmp_path: Path, photos: Path, fitting: FittingBundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, choices = {"clusters": 5}, set[int]()
    send = DirectTransport.put_update

    async def noted(
        self: DirectTransport, task: int, round_number: int, header: bytes, blobs: Blobs
    ) -> update_pb2.Receipt:
        uploads = update_pb2.UpdateHeader.FromString(header[LENGTH.size :]).uploads
        for blob in [blob for upload, blob in zip(uploads, blobs, strict=True) if upload.name == "choice"]:
            scores = Blob.from_bytes(blob if isinstance(blob, bytes) else blob.read_bytes())["score"]
            assert sorted(scores.tolist()) == [0, 0, 0, 0, 1]
            choices.add(int(np.argmax(scores)))
        return await send(self, task, round_number, header, blobs)

    monkeypatch.setattr(DirectTransport, "put_update", noted)
    fleet = two_drivers.fleet(tmp_path, photos)

    await running.run(fleet, two_drivers.settings("ifca", rounds=1, options=options), tuple(fitting("ifca", options)))

    assert len(choices) > 1


async def test_fedfomo_never_trains_on_a_validation_photo(
    tmp_path: Path, photos: Path, fitting: FittingBundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, compared = set[bytes](), set[bytes]()
    train, derive = TorchEngine.train, TorchEngine.derive

    def training(
        self: TorchEngine,
        program: str,
        weights: Mapping[str, Array],
        rows: Rows,
        batches: Iterable[NDArray[np.int64]],
        *more: Any,
        **others: Any,
    ) -> dict[str, Array]:
        order = list(batches)
        trained.update(rows.inputs[row].tobytes() for batch in order for row in batch)
        return train(self, program, weights, rows, order, *more, **others)

    def deriving(
        self: TorchEngine, program: str, hyper: Any, references: Any, rows: Rows | None = None
    ) -> dict[str, Array]:
        compared.update(row.tobytes() for row in (() if rows is None else rows.inputs))
        return derive(self, program, hyper, references, rows)

    monkeypatch.setattr(TorchEngine, "train", training)
    monkeypatch.setattr(TorchEngine, "derive", deriving)
    options = {"share_models": True, "others": 2, "validation_percent": 20}
    # Each client has 20 photos of its own, enough to be divided.
    mine = Partition(name=PartitionName.CAMERA_IID, seed=3, clients=4, per_class=2, test_per_class=1)
    fleet = two_drivers.fleet(tmp_path, photos, 4, partition=mine)
    settings = two_drivers.settings("fedfomo", rounds=3, population=4, options=options)

    await running.run(fleet, settings, tuple(fitting("fedfomo", options)))

    # In three rounds: others' validation photos are nobody's to train on either.
    assert trained.isdisjoint(compared)
    # About a fifth of the photos are set apart.
    assert 0 < len(compared) < len(trained)
