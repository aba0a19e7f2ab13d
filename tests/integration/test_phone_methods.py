"""Methods with plans of their own on phones: the Kotlin client, Python's ExecuTorch engine and the torch engine.

A federation takes place up to three times with the same seed, secrets and photos: all its clients are of one kind. The
Kotlin clients run `.pte` on the JVM engine. Between phones all bytes on the server are the same; from phones to torch
uploads and what clients keep differ by rounding alone, and choices not at all.
"""

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedlens.compare.run import running
from fedlens_edge_client.client.transport import Blobs
from fedlens_edge_client.emulation.faulty_transport import FaultyTransport
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.storage.client_state import ClientState
from fedlens_edge_client.storage.folder_album import FolderAlbum
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_edge_client.storage.tensor_files import TensorFiles
from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models.classified import Classified
from fedlens_proto.blob import Array, Blob
from fedlens_proto.v1 import update_pb2
from fedlens_proto.wire import LENGTH
from tests.integration import kotlin_client, two_drivers
from tests.integration.federation import SIDE
from tests.integration.processes import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLIENTS, ROUNDS, FEATURES = 4, 2, 8
TASK = 1
CLASSES = tuple(str(digit) for digit in range(10))
TOLERANCE = 1e-4
Uploads = dict[tuple[int, int], dict[str, dict[str, Array]]]
"""By client and round, the tensors of each upload."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A federation of one method.

    Attributes:
        objective: Of its bundles.
        keeps: Client state.
        uploads: Names of what clients send; all but weights are tables.
        architectures: Of `ARCHITECTURES`; client i has the i-th, cyclically.
    """

    objective: str
    keeps: str
    uploads: tuple[str, ...] = ("weights",)
    architectures: tuple[str, ...] = ("linear",)
    candidates: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> list[str]:
        """The tables that clients must be allowed to send."""
        return [name for name in self.uploads if name != "weights"]


def pooled(side: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(side), nn.Flatten())


def classified(*layers: nn.Module) -> nn.Module:
    return Classified(nn.Sequential(*layers), nn.Linear(FEATURES, len(CLASSES)))


# The frozen backbone, and the head that trains.
ARCHITECTURES: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    # The fewest tensors: five candidates for it are exported twice as fast as for another.
    "linear": lambda: (pooled(2), nn.Sequential(OrderedDict(classifier=nn.Linear(12, len(CLASSES))))),
    "pooled": lambda: (pooled(2), classified(nn.Linear(12, FEATURES))),
    "convolved": lambda: (
        nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Flatten()),
        classified(nn.Linear(6 * 9, FEATURES)),
    ),
    "patched": lambda: (
        nn.Sequential(nn.Conv2d(3, 10, 4, stride=4), nn.Flatten()),
        classified(nn.Linear(10 * 4, FEATURES)),
    ),
    "deep": lambda: (pooled(4), classified(nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, FEATURES))),
}
CASES = {
    # Two trainings, one of them of client state that is never sent.
    "ditto": Case(objective="proximal", keeps="personal"),
    # Programs over rows and over none, and a choice.
    "ifca": Case(
        objective="cross_entropy", keeps="model", uploads=("weights", "choice"), candidates=5, options={"clusters": 5}
    ),
    # A table alone, of models with different weights.
    "fedproto": Case(
        objective="prototypes",
        keeps="model",
        uploads=("prototypes",),
        architectures=("pooled", "convolved", "patched", "deep"),
    ),
}
METHODS = [pytest.param(name, marks=[] if name == "ifca" else [pytest.mark.long]) for name in CASES]


@dataclass(frozen=True, kw_only=True)
class FolderFleet(FleetConfig):
    """A fleet whose clients have a folder of photos each, as the Kotlin client takes them."""

    folders: Path

    def album(self, index: int) -> FolderAlbum:
        """A client's folder."""
        return FolderAlbum(self.folders / str(index))


@pytest.fixture(scope="module")
def folders(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six of ten digits for each client, about 36 photos of three channels and the model's size."""
    root = tmp_path_factory.mktemp("folders")
    for file in sorted(photos.rglob("*.png")):
        index, label = int(file.stem) % CLIENTS, int(file.parent.name)
        if (label + index) % 5 < 3:
            folder = root / str(index) / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            with Image.open(file) as image:
                image.convert("RGB").save(folder / file.name)
    return root


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Path]]:
    """A method's bundles for phones, by name."""

    @cache
    def export(method: str) -> list[Path]:
        case = CASES[method]
        training = Training(
            class_names=CLASSES, batch=16, objective=case.objective, candidates=case.candidates, pte=True
        )
        found = []
        for name in case.architectures:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(5)
                backbone, head = ARCHITECTURES[name]()
            folder = tmp_path_factory.mktemp(method) / name
            found.append(frozen_backbone_bundle(folder, backbone, head, training, SIDE, name=name).folder)
        return found

    return export


def settings(method: str) -> str:
    more = {"rounds": ROUNDS, "population": CLIENTS, "deadline_s": 300, "personal_evaluation": True}
    return two_drivers.settings(method, **more, options=CASES[method].options)


@dataclass(frozen=True)
class Received:
    """The server's record of a federation, by round and client.

    Attributes:
        digests: State, number of examples, and the digests of all that the client was given and all that it sent.
        counts: Labels, and numbers of photos and of those that were classified correctly, of each evaluation.
        losses: Of each evaluation.
    """

    digests: list[tuple[Any, ...]]
    counts: list[tuple[str, int, int]]
    losses: list[float]

    @classmethod
    def of(cls, data: Path) -> Self:
        """Of the database in a server's folder."""
        columns = "round, client, state, num_examples, sets, blobs"
        with closing(sqlite3.connect(data / "server.sqlite3")) as database:
            rows = database.execute(f"SELECT {columns}, evaluations FROM members ORDER BY round, client").fetchall()
        evaluations = [entry for *_, listed in rows for entry in json.loads(listed)]
        counts = [(label, count, correct) for label, count, correct, *_ in evaluations]
        return cls([tuple(row[:-1]) for row in rows], counts, [entry[3] for entry in evaluations])


@dataclass(frozen=True)
class Outcome:
    """A federation of Python's clients that is over.

    Attributes:
        received: By the server.
        uploads: As the clients sent them.
        kept: By client, its state for the next round.
    """

    received: Received
    uploads: Uploads
    kept: list[dict[str, Array]]


def kept(fleet: FleetConfig, server: str, name: str) -> list[dict[str, Array]]:
    """The client state of that name of each of Python's clients, after its last round."""
    found = []
    for index in fleet.indices:
        with closing(StateFolder.open(fleet.folder(index), server, fleet.secret(index))) as state:
            current = ClientState(state, TensorFiles(state.folder / "tensors")).current(TASK, name)
            assert current is not None
            found.append({key: np.array(tensor) for key, tensor in current.items()})
    return found


@contextmanager
def recorded() -> Iterator[Uploads]:
    """The uploads of Python's clients, in a study as over HTTP."""
    found: Uploads = {}
    send = FaultyTransport.put_update

    async def noted(
        self: FaultyTransport, task: int, round_number: int, header: bytes, blobs: Blobs
    ) -> update_pb2.Receipt:
        names = [upload.name for upload in update_pb2.UpdateHeader.FromString(header[LENGTH.size :]).uploads]
        raws = [blob if isinstance(blob, bytes) else blob.read_bytes() for blob in blobs]
        tensors = [{key: np.array(tensor) for key, tensor in Blob.from_bytes(raw).items()} for raw in raws]
        if names:  # in the last round everyone evaluates and sends nothing else
            found[self._index, round_number] = dict(zip(names, tensors, strict=True))
        return await send(self, task, round_number, header, blobs)

    with patch.object(FaultyTransport, "put_update", noted):
        yield found


class Federations:
    """The same federations with clients of each kind; those of Python's clients are held once for all tests."""

    def __init__(self, folder: Path, folders: Path, bundles: Callable[[str], list[Path]]) -> None:
        self._folder = folder
        self._folders = folders
        self._bundles = bundles
        self._held: dict[tuple[str, EngineName], Outcome] = {}

    def _fleet(self, method: str, kind: str, engine: EngineName) -> FolderFleet:
        case = CASES[method]
        fleet = two_drivers.fleet(
            self._folder / method / kind, self._folders, CLIENTS, models=case.architectures, engines=(engine,)
        )
        return FolderFleet(**vars(fleet), folders=self._folders)

    async def phones(self, method: str) -> Outcome:
        """With Python's ExecuTorch engine, over HTTP."""
        key = method, EngineName.EXECUTORCH
        if key not in self._held:
            fleet = self._fleet(method, "phones", EngineName.EXECUTORCH)
            with ServerProcess.prepared(fleet.state / "server") as server, recorded() as uploads:
                await two_drivers.over_http(server, fleet, settings(method), self._bundles(method))
                state = kept(fleet, server.url, CASES[method].keeps)
                self._held[key] = Outcome(Received.of(server.folder / "data"), uploads, state)
        return self._held[key]

    async def torch(self, method: str) -> Outcome:
        """With the torch engine, in a study."""
        key = method, EngineName.TORCH
        if key not in self._held:
            fleet = self._fleet(method, "torch", EngineName.TORCH)
            with recorded() as uploads:
                await two_drivers.in_a_study(fleet, settings(method), self._bundles(method))
            state = kept(fleet, running.SERVER, CASES[method].keeps)
            self._held[key] = Outcome(Received.of(fleet.state / "server"), uploads, state)
        return self._held[key]

    async def kotlin(self, method: str) -> Received:
        """With the Kotlin client, a process each, over HTTP."""
        fleet, tables = self._fleet(method, "kotlin", EngineName.EXECUTORCH), CASES[method].tables
        allowed = [option for table in tables for option in ("--allow-table", table)]

        async def live(server: ServerProcess, index: int) -> None:
            folder = fleet.folder(index)
            folder.mkdir(parents=True)
            (folder / "secret").write_bytes(fleet.secret(index))
            options: list[str | Path] = [
                *("--server", server.url, "--ca", server.ca, "--token-file", server.folder / "trainer.token"),
                "--trust-server",
                *("--secret-file", folder / "secret", "--state", folder / "state"),
                *("--album", self._folders / str(index), "--model", fleet.models_of(index)[0]),
                *allowed,
            ]
            life = await kotlin_client.live(*options)
            assert (life.status, life.errors) == (0, "")

        with ServerProcess.prepared(fleet.state / "server") as server:
            elsewhere = {index: partial(live, server, index) for index in fleet.indices}
            await two_drivers.over_http(server, fleet, settings(method), self._bundles(method), elsewhere)
            return Received.of(server.folder / "data")


@pytest.fixture(scope="module")
def federations(
    folders: Path, bundles: Callable[[str], list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Federations:
    """Of the methods of `CASES`."""
    return Federations(tmp_path_factory.mktemp("federations"), folders, bundles)


def assert_near(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """The same tensors within `TOLERANCE`."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_allclose(tensor, expected[name], rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("method", METHODS)
async def test_phones_send_and_keep_what_clients_on_torch_do_within_rounding(
    federations: Federations, method: str
) -> None:
    phones, on_torch = await federations.phones(method), await federations.torch(method)

    assert (
        phones.uploads.keys()
        == on_torch.uploads.keys()
        == {(index, number) for index in range(CLIENTS) for number in range(1, ROUNDS + 1)}
    )
    for place, sent in phones.uploads.items():
        assert sent.keys() == on_torch.uploads[place].keys() == set(CASES[method].uploads)
        for name in sent:
            assert_near(sent[name], on_torch.uploads[place][name])
    for mine, theirs in zip(phones.kept, on_torch.kept, strict=True):
        assert_near(mine, theirs)


async def test_phones_and_clients_on_torch_choose_the_same_of_five_centres(federations: Federations) -> None:
    phones, on_torch = await federations.phones("ifca"), await federations.torch("ifca")

    choices = {place: sent["choice"]["score"].tolist() for place, sent in phones.uploads.items()}
    assert choices == {place: sent["choice"]["score"].tolist() for place, sent in on_torch.uploads.items()}
    assert {tuple(sorted(scores)) for scores in choices.values()} == {(0, 0, 0, 0, 1)}
    assert len({tuple(scores) for scores in choices.values()}) > 1


@pytest.mark.long
async def test_prototypes_come_from_four_architectures(federations: Federations) -> None:
    phones = await federations.phones("fedproto")

    shapes = [{name: tensor.shape for name, tensor in mine.items()} for mine in phones.kept]
    assert all(mine != other for i, mine in enumerate(shapes) for other in shapes[:i])
    assert {sent["prototypes"]["prototypes"].shape for sent in phones.uploads.values()} == {(10, FEATURES)}


@pytest.mark.parametrize("method", METHODS)
async def test_kotlin_clients_send_the_bytes_that_pythons_phones_send(federations: Federations, method: str) -> None:
    kotlin_client.class_path()

    kotlin, python = await federations.kotlin(method), (await federations.phones(method)).received

    assert kotlin.digests == python.digests
    # Evaluations are also of what clients never send. `exp` of the JVM and of numpy may differ in the last bit.
    assert kotlin.counts == python.counts
    np.testing.assert_allclose(kotlin.losses, python.losses, rtol=1e-12)
    assert len(kotlin.digests) == CLIENTS * (ROUNDS + 1)
