import stat
from dataclasses import replace
from pathlib import Path

import pytest

from fedlens_edge_client.emulation.fleet.config import FleetConfig, default_workers, fleet_key
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from fedlens_edge_client.errors import StateError
from fedlens_proto import keyed_hash
from tests.edge_client.photo_folders import write_clients


def test_every_client_belongs_to_one_worker(config: FleetConfig) -> None:
    assert config.clients_of_worker(0) == [0, 2, 4]
    assert config.clients_of_worker(1) == [1, 3, EVALUATOR]


def test_secrets_follow_from_key_seed_and_index(config: FleetConfig) -> None:
    assert config.secret(3) == keyed_hash.fleet_secret(bytes(32), 7, 3)
    assert config.client_id(3) == keyed_hash.client_id(config.secret(3))


def test_no_two_clients_share_a_secret_or_a_folder(config: FleetConfig) -> None:
    assert len({config.secret(index) for index in config.indices}) == 6
    assert len({config.folder(index) for index in config.indices}) == 6


def test_a_fleet_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first = fleet_key(tmp_path / "state")

    assert len(first) == 32
    assert fleet_key(tmp_path / "state") == first
    assert stat.S_IMODE((tmp_path / "state" / "fleet.key").stat().st_mode) == 0o600


def test_a_damaged_fleet_key_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "fleet.key").write_text("0123\n")

    with pytest.raises(StateError, match=r"fleet\.key must hold 64 hexadecimal digits"):
        fleet_key(tmp_path)
    assert (tmp_path / "fleet.key").read_text() == "0123\n"


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StateError, match=r"file cannot hold a fleet's state"):
        fleet_key(tmp_path / "file")


def test_there_are_no_more_workers_than_clients() -> None:
    assert default_workers(1) == 1


def test_photos_features_may_be_kept_elsewhere_than_what_a_fleet_has_downloaded(
    config: FleetConfig, tmp_path: Path
) -> None:
    kept = replace(config, photo_features=tmp_path / "kept")

    assert config.features == config.shared == config.cache(0) == tmp_path / "cache"
    assert kept.features == tmp_path / "kept"
    assert kept.shared == kept.cache(0) == tmp_path / "cache"


def test_a_client_is_called_by_the_one_whose_photos_it_has(config: FleetConfig, tmp_path: Path) -> None:
    pool = PhotoPool.open(write_clients(tmp_path, {name: {"cat": 5, "dog": 5} for name in ("anna", "ben")}))
    owned = replace(config, pool=pool, partition=Partition(name=PartitionName.CLIENTS, seed=1))
    together = replace(owned, partition=Partition(name=PartitionName.CLIENTS, seed=1, clients=1))

    assert [owned.name(index) for index in (0, 1, EVALUATOR)] == ["client 0 (anna)", "client 1 (ben)", "evaluator"]
    assert together.name(0) == config.name(0) == "client 0"


def test_clients_take_the_models_in_turn_and_the_evaluator_any(config: FleetConfig) -> None:
    mixed = replace(config, models=("resnet18", "alexnet"))

    assert [mixed.models_of(index) for index in range(4)] == [("resnet18",), ("alexnet",)] * 2
    assert mixed.models_of(EVALUATOR) == ()
    assert config.models_of(0) == ()
