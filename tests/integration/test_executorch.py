"""Every method with clients that run programs as phones do, over HTTP; and a federation in which both engines are."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedlens.admin_client import AdminClient
from fedlens.compare.run.running import RunResult
from fedlens_edge_client.client.client import TRIED
from fedlens_edge_client.emulation.fleet.running import run_fleet
from fedlens_edge_client.engines.choice import EngineName
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones
from fedlens_proto.blob import Array, Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2
from tests.integration import two_drivers
from tests.integration.federation import SIDE
from tests.integration.processes import ServerProcess
from tests.phone_bundles import linear_bundle

CLIENTS = 4
CLASSES = tuple(str(digit) for digit in range(10))
PHONES = (EngineName.EXECUTORCH,)
MIXED = (EngineName.TORCH, EngineName.EXECUTORCH)
NewBundle = Callable[..., Path]


@pytest.fixture(scope="session")
def digits_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest bundle for phones that takes the digits."""
    return linear_bundle(tmp_path_factory.mktemp("phone") / "bundle", CLASSES, 16).folder


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> NewBundle:
    """By objective, the bundle of a frozen convolution and a head of two layers; `concatenated` is FedConcat's."""

    @cache
    def export(objective: str) -> Path:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            backbone = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Flatten())
        head = backbones.build_head("hidden", 6 * 9, len(CLASSES), seed=0)
        concatenated = 2 if objective == "concatenated" else 0
        training = Training(
            class_names=CLASSES,
            batch=16,
            objective="cross_entropy" if concatenated else objective,
            stored_views=2,
            concatenated=concatenated,
            onnx=objective == "cross_entropy",
            pte=True,
        )
        folder = tmp_path_factory.mktemp(objective) / "bundle"
        return frozen_backbone_bundle(folder, backbone, head, training, SIDE, name="phone").folder

    return export


def settings(method: str, **more: Any) -> str:
    hyper = {"lr_extractor": 0.05, "lr_classifier": 0.05, **more.pop("hyper", {})}
    seed = sha256(method.encode()).hexdigest()
    return json.dumps(
        {"method": method, "rounds": 2, "population": CLIENTS, "epochs": 1, "deadline_s": 600, "seed": seed}
        | {"personal_evaluation": True, "hyper": hyper}
        | more
    )


def weights(answer: RunResult) -> dict[str, Array]:
    return {} if answer.model is None else dict(Blob.from_bytes(BytesIO(answer.model).getvalue()))


def assert_near(found: RunResult, expected: RunResult, tolerance: float) -> None:
    """The same rounds and members; the same model within a tolerance."""
    assert found.shown.task.state == admin_pb2.TASK_STATE_FINISHED
    assert len(found.shown.rounds) == len(expected.shown.rounds)
    for ours, theirs in zip(found.shown.rounds, expected.shown.rounds, strict=True):
        assert [(m.client_id, m.state, m.reason) for m in ours.members] == [
            (m.client_id, m.state, m.reason) for m in theirs.members
        ]
        assert {m.state for m in ours.members} == {admin_pb2.MEMBER_STATE_REPORTED}
    ours, theirs = weights(found), weights(expected)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.slow
async def test_after_one_epoch_a_fleet_of_both_engines_has_the_model_of_one(
    tmp_path: Path, photos: Path, digits_bundle: Path, server: ServerProcess
) -> None:
    one_round = settings("fedavg", rounds=1)
    fleet = two_drivers.fleet(tmp_path / "http", photos, CLIENTS, engines=MIXED)

    mixed = await two_drivers.over_http(server, fleet, one_round, [digits_bundle])
    torch_alone = await two_drivers.in_a_study(replace(fleet, state=tmp_path / "study"), one_round, [digits_bundle])

    assert_near(mixed, torch_alone, 1e-5)
    assert weights(mixed)


CASES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("fedavg", ["cross_entropy"], {}),
    ("fedns", ["cross_entropy"], {}),
    ("fedavg_last_fc", ["cross_entropy"], {}),
    ("fedclassavg", ["supcon"], {}),
    ("fedclassavg", ["classifier_proximal"], {"options": {"weight": True}}),
    ("pfedsim", ["cross_entropy"], {"options": {"warm_up": 0.5}}),
    ("fedprox", ["proximal"], {"hyper": {"mu": 0.1}}),
    ("fedper", ["cross_entropy"], {}),
    ("fedrep", ["cross_entropy"], {"options": {"extractor_epochs": 2}}),
    ("local_only", ["cross_entropy"], {}),
    ("ditto", ["proximal"], {}),
    ("fedproto", ["prototypes"], {}),
    (
        "fedconcat",
        ["cross_entropy", "concatenated"],
        {
            "rounds": 3,
            "options": {"labels": "counts", "clusters": 2, "extractor_rounds": 1, "classifier_rounds": 1},
        },
    ),
]


# Weights alone; a table and its prediction. The rest, and mixed fleets, are long.
QUICKER = {"fedavg-cross_entropy", "fedproto-prototypes"}


@pytest.mark.parametrize(
    ("method", "objectives", "more", "engines"),
    [
        pytest.param(
            *case,
            engines,
            id=f"{title}-{name}",
            marks=pytest.mark.slow if engines == PHONES and title in QUICKER else pytest.mark.long,
        )
        for case in CASES
        for title in [f"{case[0]}-{case[1][0]}"]
        for name, engines in (("phones", PHONES), ("mixed", MIXED))
    ],
)
async def test_a_federation_of_phones_gives_what_one_of_torch_gives(
    tmp_path: Path,
    photos: Path,
    exported: NewBundle,
    server: ServerProcess,
    method: str,
    objectives: list[str],
    more: dict[str, Any],
    engines: tuple[EngineName, ...],
) -> None:
    bundles = [exported(objective) for objective in objectives]
    fleet = two_drivers.fleet(tmp_path / "http", photos, CLIENTS, engines=engines)

    phones = await two_drivers.over_http(server, fleet, settings(method, **more), bundles)
    study = await two_drivers.in_a_study(replace(fleet, state=tmp_path / "study"), settings(method, **more), bundles)

    # Rounding grows from round to round.
    assert_near(phones, study, 1e-4)


@pytest.mark.slow
async def test_a_fleet_in_worker_processes_runs_both_engines_and_notes_what_it_tried(
    tmp_path: Path, photos: Path, digits_bundle: Path, server: ServerProcess
) -> None:
    fleet = two_drivers.fleet(
        tmp_path / "fleet",
        photos,
        CLIENTS,
        engines=MIXED,
        server=server.url,
        ca=server.ca,
        token=server.token("trainer"),
        workers=2,
        shares_downloads=True,
    )
    admin = AdminClient(server.profile)
    bundle = Bundle.open(digits_bundle)
    await asyncio.to_thread(admin.create_task, "digits", [bundle], settings("fedavg"))

    status = await asyncio.to_thread(run_fleet, fleet)

    assert not status.failures
    assert not status.trouble
    # Two rounds, and the personal evaluation at the end.
    assert status.reports == 3 * CLIENTS
    tried = list((fleet.cache(0) / TRIED).iterdir())
    assert len(tried) == len(bundle.manifest.programs)
