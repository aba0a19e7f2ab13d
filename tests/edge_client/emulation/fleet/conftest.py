from pathlib import Path

import pytest

from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from tests.edge_client.emulation.fleets import fleet_of


@pytest.fixture
def config(tmp_path: Path) -> FleetConfig:
    """Of clients without photos, whose server does not answer."""
    pool = PhotoPool(root=tmp_path, class_names=("a", "b"), train=((), ()), test=((), ()), skipped={})
    partition = Partition(name=PartitionName.CAMERA_IID, seed=7, per_class=1)
    return fleet_of(pool, partition, tmp_path, server="https://127.0.0.1:1", clients=5, workers=2)
