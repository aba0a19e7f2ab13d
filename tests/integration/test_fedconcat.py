"""FedConcat through all its phases, over HTTP and in a study: the same bytes, whoever vanishes or sends NaN."""

from pathlib import Path
from typing import Any

import pytest

from fedlens.admin_client import AdminClient
from fedlens.compare.run.running import TASK
from fedlens.model_file import fetch_model
from fedlens_edge_client.emulation.faults import FaultKind
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.storage.model_file import read_model
from fedlens_edge_client.training.prediction import predict
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2
from tests.integration import two_drivers
from tests.integration.processes import ServerProcess

pytestmark = pytest.mark.slow

SETTINGS = {"rounds": 5, "cohort": 6, "hyper": {"lr_extractor": 0.1, "lr_classifier": 0.1}}
OPTIONS = {"clusters": 2, "extractor_rounds": 2, "classifier_rounds": 2}
SHORT = {"codec": "int8", "difference": True, "download_codec": "int8", "download_difference": True}
# Bob vanishes in the clustering round, so that he has no cluster; Carol sends NaN while clusters train.
FAULTS = [(1, 1, FaultKind.VANISH), (2, 2, FaultKind.NAN), (2, 3, FaultKind.NAN)]


async def assert_predicts_as_a_client(server: ServerProcess, members: FleetConfig, bundle: Path, folder: Path) -> None:
    """The model that an operator fetches sees in a photo what a client of the task sees in it."""
    photo = next(path for path in members.pool.root.rglob("*.*"))
    engine = TorchEngine(Bundle.open(bundle))
    fetch_model(AdminClient(server.profile), TASK, folder / "model.safetensors")
    model = read_model(folder / "model.safetensors", engine.bundle)
    async with two_drivers.member(server, members, 0, engine_factory=lambda _: engine) as client:
        await client.run()
        expected = await client.predict(photo)
    assert predict(engine, model.weights, photo, model.extractors) == expected


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"labels": "inferred", "random_images": 50, "start": "clusters"}, {}),
        pytest.param({"labels": "counts", "balanced": True}, SHORT, marks=pytest.mark.slow),
        pytest.param({"labels": "noisy", "epsilon": 5, "clusters": "elbow"}, {}, marks=pytest.mark.slow),
        pytest.param({"labels": "inferred", "random_images": 50}, SHORT, marks=pytest.mark.slow),
    ],
)
async def test_all_phases_give_the_same_bytes_over_http_and_in_a_study(
    tmp_path: Path,
    images: Path,
    concatenating: list[Path],
    server: ServerProcess,
    options: dict[str, object],
    sent: dict[str, object],
) -> None:
    task: dict[str, Any] = {**SETTINGS, **sent, "options": {**OPTIONS, **options}}
    members = two_drivers.fleet(tmp_path / "http", images, faults=FAULTS, evaluator_token="evaluator")

    study = await two_drivers.both(server, members, two_drivers.settings("fedconcat", **task), concatenating)

    rounds = study.shown.rounds
    assert [result.phase for result in rounds] == [0, 1, 1, 2, 2]
    clustering = two_drivers.states(rounds[0])
    assert (len(clustering), clustering.count(admin_pb2.MEMBER_STATE_REPORTED)) == (8, 7)
    assert any(admin_pb2.MEMBER_STATE_QUARANTINED in two_drivers.states(result) for result in rounds[1:3])
    assert [bool(getattr(result, "global")) for result in rounds] == [False, False, False, True, True]
    await assert_predicts_as_a_client(server, members, concatenating[1], tmp_path)
