"""The final examination: the model that each client has at the end, on everybody's photos."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fedlens.compare.run.examination import Examination
from fedlens.compare.run.running import RunResult, run
from fedlens.digits import write_digits
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import client_name
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool, PoolPhoto
from fedlens_export.exporting import Training, whole_model_bundle
from fedlens_proto.manifest import Bundle
from tests.edge_client.emulation.fleets import fleet_of
from tests.edge_client.photo_folders import write_clients
from tests.fedlens.compare.run.runs import Stopped, settings, stop_after
from tests.integration.federation import SIDE

PEOPLE, CLIENTS, ROUNDS = 6, 2, 4


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 12), nn.ReLU(), nn.Linear(12, 10))
    training = Training(class_names=tuple(str(digit) for digit in range(10)), batch=16)
    return whole_model_bundle(tmp_path_factory.mktemp("export") / "bundle", model, training, SIDE, name="small")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PhotoPool:
    """Of each digit and person two photos to train on and one to test with; three people have each camera."""
    whole = PhotoPool.open(write_digits(tmp_path_factory.mktemp("digits") / "photos"))

    def owned(members: tuple[PoolPhoto, ...], count: int) -> tuple[PoolPhoto, ...]:
        return tuple(
            replace(photo, owner=f"p{i % PEOPLE}", camera="left" if i % PEOPLE < 3 else "right")
            for i, photo in enumerate(members[:count])
        )

    return replace(
        whole,
        train=tuple(owned(members, 2 * PEOPLE) for members in whole.train),
        test=tuple(owned(members, PEOPLE) for members in whole.test),
    )


def fleet(pool: PhotoPool, state: Path, clients: int = CLIENTS) -> FleetConfig:
    # A third of the six people have no client.
    partition = Partition(name=PartitionName.CLIENTS, seed=1, clients=clients, unseen=1 / 3)
    return fleet_of(pool, partition, state, shares_downloads=False)


async def examined(members: FleetConfig, bundle: Bundle, method: str, stopped_after: int | None = None) -> RunResult:
    rates = {"lr_extractor": 0.1, "lr_classifier": 0.1}
    task = settings(members.clients, method=method, rounds=ROUNDS, epochs=3, personal_evaluation=True, hyper=rates)
    return await run(members, task, (bundle.folder,), on_commit=stop_after(stopped_after))


def of_group(answer: RunResult, group: str) -> list[tuple[int, int]]:
    assert answer.examined is not None
    return [(client[group]["count"], client[group]["correct"]) for client in answer.examined]


@pytest.mark.parametrize("method", ["local_only", "fedavg", "fedper", "pfedsim"])
async def test_on_their_own_people_clients_are_as_good_as_in_the_last_personal_evaluation(
    tmp_path: Path, pool: PhotoPool, bundle: Bundle, method: str
) -> None:
    members = fleet(pool, tmp_path)
    answer = await examined(members, bundle, method)

    measured = {member.client_id: member.evaluations[0] for member in answer.shown.rounds[-1].members}
    # Two people with one test photo of each of ten digits.
    assert of_group(answer, "own") == [(20, measured[members.client_id(index)].correct) for index in range(CLIENTS)]


async def test_every_photo_counts_for_the_people_whose_it_is(tmp_path: Path, pool: PhotoPool, bundle: Bundle) -> None:
    answer = await examined(fleet(pool, tmp_path), bundle, "fedavg")

    # All have one model: to one client the others' people are the other's own. Two people that have no client: 30
    # photos each, on which the evaluator has measured that very model.
    assert of_group(answer, "others") == of_group(answer, "own")[::-1]
    last = [sums for result in answer.shown.rounds for sums in getattr(result, "global")][-1]
    assert of_group(answer, "unseen") == [(60, last.correct)] * 2
    assert answer.examined is not None
    for index, client in enumerate(answer.examined):
        assert (client["client"], client["people"]) == (client_name(index), 2)
        for group in ("own", "others", "unseen"):
            by_camera = client[group]["cameras"].values()
            assert sum(sums["count"] for sums in by_camera) == client[group]["count"]
            assert sum(sums["correct"] for sums in by_camera) == client[group]["correct"]


def test_nobody_has_trained_on_the_photos_of_people_that_clients_have_never_met(tmp_path: Path) -> None:
    write_clients(tmp_path, {"anna": {"cat": 8, "dog": 8}, "ben": {"cat": 8, "dog": 8}})
    for photo in (tmp_path / "anna" / "cat").iterdir():
        (tmp_path / "ben" / "cat" / f"copy-{photo.name}").write_bytes(photo.read_bytes())
    partition = Partition(name=PartitionName.CLIENTS, seed=1, clients=1, unseen=1 / 2)
    member = fleet_of(PhotoPool.open(tmp_path), partition, tmp_path / "state")

    found = Examination.of(member)

    assert found is not None
    never_met = {entry.digest for photo, entry, _ in found.photos if photo.owner in found.unseen}
    assert never_met
    assert not never_met & {photo.digest for photo in member.album(0).photos(1).photos if not photo.is_test}


async def test_a_client_with_everybodys_photos_knows_no_others(tmp_path: Path, pool: PhotoPool, bundle: Bundle) -> None:
    answer = await examined(fleet(pool, tmp_path, clients=1), bundle, "fedavg")

    assert answer.examined is not None
    (client,) = answer.examined
    assert client["people"] == 4 and "others" not in client
    assert (client["own"]["count"], client["unseen"]["count"]) == (40, 60)


async def test_a_run_that_is_interrupted_after_its_last_round_is_examined_all_the_same(
    tmp_path: Path, pool: PhotoPool, bundle: Bundle
) -> None:
    with pytest.raises(Stopped):
        await examined(fleet(pool, tmp_path / "twice"), bundle, "pfedsim", stopped_after=ROUNDS)
    resumed = await examined(fleet(pool, tmp_path / "twice"), bundle, "pfedsim")
    calm = await examined(fleet(pool, tmp_path / "once"), bundle, "pfedsim")

    assert resumed.examined == calm.examined is not None


async def test_clients_that_are_no_people_are_not_examined(tmp_path: Path, pool: PhotoPool, bundle: Bundle) -> None:
    partition = Partition(name=PartitionName.CAMERA_IID, seed=1, clients=CLIENTS, per_class=2)
    answer = await examined(replace(fleet(pool, tmp_path), partition=partition), bundle, "fedavg")

    assert answer.examined is None
