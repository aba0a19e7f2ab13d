"""The Kotlin client on the JVM engine, a process of its own, beside Python clients against the real server.

Each federation takes place twice, with the same seed, secrets and photos: once with the Kotlin client as its member 0,
once with a Python client on ExecuTorch in its place.
"""

import asyncio
import json
import random
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedlens.admin_client import AdminClient, AdminError
from fedlens.publishing import sign_bundle
from fedlens_edge_client.client.client import EdgeClient
from fedlens_edge_client.client.http_transport import HttpTransport
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.engines.choice import EngineName, make_engine
from fedlens_edge_client.storage.folder_album import FolderAlbum
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_export import signing
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones
from fedlens_export.network import IMAGENET
from fedlens_proto import wire
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2, check_in_pb2
from tests.integration import federation, kotlin_client
from tests.integration.kotlin_client import Death, Fate, Life
from tests.integration.mortal_way import MortalWay
from tests.integration.processes import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLIENTS, ROUNDS, SIDE = 3, 5, 32
FEDERATION = "pictures"
CLASSES = tuple(str(number) for number in range(10))
# The first is the one in whose place the Kotlin client stands.
ENGINES = (EngineName.EXECUTORCH, EngineName.TORCH, EngineName.EXECUTORCH)
OBJECTIVES = {"fedavg": "cross_entropy", "fedclassavg": "supcon", "pfedsim": "cross_entropy"}
OPTIONS: dict[str, dict[str, Any]] = {"pfedsim": {"warm_up": 0.4}}
Member = Callable[[int, Path], Awaitable[None]]


@pytest.fixture(scope="module")
def albums(tmp_path_factory: pytest.TempPathFactory, cifar10: Path) -> list[Path]:
    """For each client 40 photos of CIFAR-10, as PNG of the model's size: what any decoder gives is the same."""
    root = tmp_path_factory.mktemp("albums")
    files = sorted(cifar10.rglob("*.jpg"))[:: 240 // (40 * CLIENTS)]
    for index, file in enumerate(files):
        folder = root / str(index % CLIENTS) / file.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        with Image.open(file) as image:
            assert image.size == (SIDE, SIDE)
            image.convert("RGB").save(folder / f"{file.stem}.png")
    return [root / str(index) for index in range(CLIENTS)]


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a publisher's key, without their endings."""
    path = tmp_path_factory.mktemp("keys") / "publisher"
    signing.new_key(path)
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, publisher: Path) -> Callable[[str], Path]:
    """By objective, the signed bundle of a frozen convolution and a head of two layers."""

    @cache
    def export(objective: str) -> Path:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            backbone = nn.Sequential(
                nn.Conv2d(3, 6, 5, stride=3), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2), nn.ReLU(), nn.Flatten()
            )
        head = backbones.build_head("hidden", 8 * 4 * 4, len(CLASSES), seed=0)
        training = Training(class_names=CLASSES, batch=16, objective=objective, stored_views=2, pte=True)
        folder = tmp_path_factory.mktemp(objective) / "bundle"
        bundle = frozen_backbone_bundle(folder, backbone, head, training, SIDE, name="phone", normalisation=IMAGENET)
        sign_bundle(bundle, publisher.with_suffix(signing.PRIVATE), signing.Terms(audience=[FEDERATION]))
        return folder

    return export


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server for all of these federations, each of which is a task of it."""
    with ServerProcess.prepared(tmp_path_factory.mktemp("kotlin") / "server") as process:
        yield process


@dataclass(frozen=True)
class Outcome:
    """The outcome of a federation.

    Attributes:
        model: The global model; None where the method has none.
        own: Digests of the sets that member 0 would use now, by name.
        shown: As an operator sees it.
        bodies: By round and client, the digest of the body that the server has.
    """

    model: bytes | None
    own: dict[str, str]
    shown: admin_pb2.ShowTaskResponse
    bodies: dict[tuple[int, str], str]


class Federation:
    """Federations of the same members on one server."""

    def __init__(self, server: ServerProcess, albums: list[Path], folder: Path, publisher: Path) -> None:
        self.server = server
        self._publisher = publisher
        self._albums = albums
        self._folder = folder
        self._numbers = count()
        self._admin = AdminClient(server.profile)
        self._engines: dict[tuple[EngineName, bytes], Engine] = {}

    async def hold(
        self, method: str, bundle: Path, first: Member, rounds: int = ROUNDS, clients: int = CLIENTS
    ) -> Outcome:
        """A task of so many rounds in which `first` is member 0."""
        name = f"{method}-{next(self._numbers)}"
        rates = {"lr_extractor": 0.05, "lr_classifier": 0.05}
        settings = {"method": method, "rounds": rounds, "population": clients, "epochs": 1, "deadline_s": 300}
        settings |= {"seed": sha256(method.encode()).hexdigest(), "hyper": rates, "personal_evaluation": True}
        settings |= {"options": OPTIONS[method]} if method in OPTIONS else {}
        folder = self._folder / name
        await asyncio.to_thread(self._admin.create_task, name, [Bundle.open(bundle)], json.dumps(settings))
        shown = await asyncio.to_thread(self._admin.show, name)
        task = shown.task.id
        with ThreadPoolExecutor(1) as executor:
            others = [self.python(index, task, folder / str(index), executor) for index in range(1, clients)]
            await asyncio.gather(first(task, folder / "0"), *others)
        shown = await asyncio.to_thread(self._admin.show, name)
        assert shown.task.state == admin_pb2.TASK_STATE_FINISHED
        assert {member.state for found in shown.rounds for member in found.members} == {admin_pb2.MEMBER_STATE_REPORTED}
        return Outcome(await asyncio.to_thread(self._model, name), await self._own(task), shown, self._bodies(task))

    async def python(self, index: int, task: int, state: Path, executor: ThreadPoolExecutor | None = None) -> None:
        """One member, in this process, until the task has ended."""
        async with EdgeClient(
            self.server.url,
            state,
            FolderAlbum(self._albums[index]),
            publishers=TRUST_SERVER,
            enrolment_token=self.server.token("trainer"),
            ca=self.server.ca,
            task=task,
            secret=federation.secret(index),
            engine=ENGINES[index],
            engine_factory=lambda bundle: self._engine(ENGINES[index], bundle),
            executor=executor,
        ) as client:
            await client.run()

    def options(self, task: int, state: Path, url: str | None = None) -> list[str | Path]:
        """The command line of the Kotlin client as member 0."""
        state.mkdir(parents=True, exist_ok=True)
        secret = state / "identity"
        if not secret.exists():
            secret.write_bytes(federation.secret(0))
        return [
            *("--server", url or self.server.url, "--ca", self.server.ca, "--task", str(task)),
            *("--token-file", self.server.folder / "trainer.token", "--secret-file", secret),
            *("--album", self._albums[0], "--state", state / "state", "--audience", FEDERATION),
            *("--publisher", self._publisher.with_suffix(signing.PUBLIC), "--floors", state / "floors.sqlite3"),
        ]

    async def kotlin(self, task: int, state: Path) -> None:
        """The Kotlin client as member 0, until the task has ended."""
        life = await kotlin_client.live(*self.options(task, state))
        assert (life.status, life.errors) == (0, "")
        assert life.states[-1] == {"state": "finished"}

    def _engine(self, name: EngineName, bundle: Bundle) -> Engine:
        # Trying programs takes seconds, once.
        if (name, bundle.id) not in self._engines:
            self._engines[name, bundle.id] = make_engine(name, bundle)
        return self._engines[name, bundle.id]

    def _model(self, name: str) -> bytes | None:
        found = BytesIO()
        try:
            self._admin.fetch(self._admin.model(name).blob_sha256, found)
        except AdminError:
            return None
        return found.getvalue()

    async def _own(self, task: int) -> dict[str, str]:
        transport = HttpTransport(self.server.url, federation.secret(0), ca=self.server.ca)
        try:
            answer = await transport.check_in(check_in_pb2.CheckInRequest(protocol=wire.PROTOCOL, task=task))
        finally:
            await transport.close()
        (model,) = answer.finished.models
        return {entry.name: entry.sha256.hex() for entry in model.sets}

    def _bodies(self, task: int) -> dict[tuple[int, str], str]:
        with closing(sqlite3.connect(self.server.folder / "data" / "server.sqlite3")) as database:
            rows = database.execute(
                "SELECT round, client, body_sha256 FROM members WHERE task = ? ORDER BY round, client", (task,)
            ).fetchall()
        return {(number, client.hex()): body.hex() for number, client, body in rows}


@pytest.fixture(scope="module")
def federations(
    server: ServerProcess, albums: list[Path], tmp_path_factory: pytest.TempPathFactory, publisher: Path
) -> Federation:
    """Of which every test holds its own."""
    kotlin_client.class_path()
    return Federation(server, albums, tmp_path_factory.mktemp("federations"), publisher)


@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedclassavg", marks=pytest.mark.long), "pfedsim"])
async def test_a_kotlin_client_leads_to_the_same_bytes_as_a_python_client_in_its_place(
    federations: Federation, exported: Callable[[str], Path], method: str
) -> None:
    bundle = exported(OBJECTIVES[method])

    kotlin = await federations.hold(method, bundle, federations.kotlin)
    python = await federations.hold(method, bundle, lambda task, state: federations.python(0, task, state))

    assert kotlin.own
    assert kotlin.own == python.own
    assert kotlin.model == python.model


async def test_the_head_after_one_epoch_is_the_same_on_every_engine(
    albums: list[Path], exported: Callable[[str], Path], publisher: Path, tmp_path: Path
) -> None:
    bundle = exported("cross_entropy")
    # Clients that had enrolled for another federation would be members too, and waited for.
    with ServerProcess.prepared(tmp_path / "server") as server:
        alone = Federation(server, albums, tmp_path, publisher)

        async def with_torch(task: int, state: Path) -> None:
            async with EdgeClient(
                server.url,
                state,
                FolderAlbum(albums[0]),
                publishers=TRUST_SERVER,
                enrolment_token=server.token("trainer"),
                ca=server.ca,
                task=task,
                secret=federation.secret(0),
                in_process=True,
            ) as client:
                await client.run()

        kotlin = await alone.hold("fedavg", bundle, alone.kotlin, rounds=1, clients=1)
        torch_head = await alone.hold("fedavg", bundle, with_torch, rounds=1, clients=1)

    assert kotlin.model is not None
    assert torch_head.model is not None
    found, expected = Blob.from_bytes(kotlin.model), Blob.from_bytes(torch_head.model)
    initial = Bundle.open(bundle).initial()
    assert list(found) == list(expected) == list(initial)
    for name in initial:
        assert np.abs(expected[name] - initial[name]).max() > 1e-4
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5, err_msg=name)


# About to enrol; enrolled; in the middle of a download; while photos are embedded; with a result that is stored and not
# sent; with one that the server has, and its receipt on the way.
FIRST_DEATHS = [
    Death("clients"),
    Death("clients answered"),
    Death("half a blob", 2),
    Death("embedded", 1, 0.02),
    Death("update"),
    Death("update answered"),
]
LATER = ("check-in answered", "preparing", "round_started", "trained", "sending", "round_reported")


def deaths(seed: str) -> list[Death]:
    """Ten: those above, and some at random moments."""
    generator = random.Random(seed)
    return FIRST_DEATHS + [Death(generator.choice(LATER), 1, generator.uniform(0.0, 0.05)) for _ in range(4)]


@pytest.mark.long
async def test_a_client_that_is_killed_ten_times_sends_every_update_once(
    federations: Federation, exported: Callable[[str], Path]
) -> None:
    lives: list[Life] = []

    async def killed(task: int, state: Path) -> None:
        async with MortalWay(federations.server.url, federations.server.ca) as way:
            for death in [*deaths("phones"), None]:
                way.fate = Fate(death)
                lives.append(await kotlin_client.live(*federations.options(task, state, way.url), fate=way.fate))
        assert all(len(set(bodies)) == 1 for bodies in way.bodies.values())
        # The one that the client did not hear of was sent again.
        assert sorted(len(bodies) for bodies in way.bodies.values())[-1] > 1

    bundle = exported("supcon")
    disturbed = await federations.hold("fedclassavg", bundle, killed)
    calm = await federations.hold("fedclassavg", bundle, federations.kotlin)

    assert [life.status for life in lives] == [-signal.SIGKILL] * 10 + [0]
    assert disturbed.bodies == calm.bodies
    assert disturbed.own == calm.own
    assert disturbed.model == calm.model
    trained = [event["round"] for life in lives for event in life.told("round_reported")]
    assert len(trained) == len(set(trained))
