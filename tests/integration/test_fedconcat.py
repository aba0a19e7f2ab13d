"""FedConcat through all its phases, over HTTP and in a study: the same bytes, whoever vanishes or sends NaN."""

import json
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from fedlens.admin_client import AdminClient
from fedlens.compare.run.running import TASK
from fedlens.model_file import fetch_model
from fedlens_edge_client.client.http_transport import HttpTransport, trust
from fedlens_edge_client.emulation.faults import FaultEntry, FaultKind, FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.storage.model_file import read_model
from fedlens_edge_client.training.label_distribution import private_generator
from fedlens_edge_client.training.prediction import predict
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2
from tests.integration import two_drivers
from tests.integration.processes import ServerProcess

CLIENTS = 8
SETTINGS = {
    "method": "fedconcat",
    "rounds": 5,
    "population": CLIENTS,
    "cohort": 6,
    "hyper": {"lr_extractor": 0.1, "lr_classifier": 0.1},
    "deadline_s": 4,
    "seed": sha256(b"fedconcat").hexdigest(),
}
OPTIONS = {"clusters": 2, "extractor_rounds": 2, "classifier_rounds": 2}
SHORT = {"codec": "int8", "difference": True, "download_codec": "int8", "download_difference": True}
# Bob vanishes in the clustering round, so that he has no cluster; Carol sends NaN while clusters train.
FAULTS = FaultPlan(
    fault=(
        FaultEntry(client=1, round=1, kind=FaultKind.VANISH),
        *(FaultEntry(client=2, round=n, kind=FaultKind.NAN) for n in (2, 3)),
    )
)


def fleet(folder: Path, photos: Path) -> FleetConfig:
    return two_drivers.fleet(folder, photos, CLIENTS, plan=FAULTS, evaluator_token="evaluator")


def tallies(result: admin_pb2.RoundResult) -> tuple[int, int]:
    """Members, and those that reported."""
    states = [member.state for member in result.members]
    return len(states), states.count(admin_pb2.MEMBER_STATE_REPORTED)


async def assert_predicts_as_a_client(server: ServerProcess, members: FleetConfig, bundle: Path, folder: Path) -> None:
    """The model that an operator fetches sees in a photo what a client of the task sees in it."""
    photo = next(path for path in members.pool.root.rglob("*.*"))
    engine = TorchEngine(Bundle.open(bundle))
    fetch_model(AdminClient(server.profile), TASK, folder / "model.safetensors")
    model = read_model(folder / "model.safetensors", engine.bundle)
    secret = members.secret(0)
    transport = HttpTransport(server.url, secret, ssl_context=trust(server.ca))
    private = partial(private_generator, secret)
    async with two_drivers.member(
        server.url, server.token("trainer"), members, 0, transport, lambda _: engine, private=private
    ) as client:
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
    settings = json.dumps({**SETTINGS, **sent, "options": {**OPTIONS, **options}})

    http = await two_drivers.over_http(server, fleet(tmp_path / "http", images), settings, concatenating)
    study = await two_drivers.in_a_study(fleet(tmp_path / "study", images), settings, concatenating)

    two_drivers.assert_same(study, http)
    rounds = study.shown.rounds
    assert [result.phase for result in rounds] == [0, 1, 1, 2, 2]
    assert study.shown.task.state == admin_pb2.TASK_STATE_FINISHED
    assert tallies(rounds[0]) == (8, 7)
    assert admin_pb2.MEMBER_STATE_QUARANTINED in {member.state for result in rounds[1:3] for member in result.members}
    assert not any(getattr(result, "global") for result in rounds[:3])
    assert all(getattr(result, "global") for result in rounds[3:])
    await assert_predicts_as_a_client(server, fleet(tmp_path / "http", images), concatenating[1], tmp_path)
