from pathlib import Path

import pytest

from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool


@pytest.fixture
def config(tmp_path: Path) -> FleetConfig:
    """Of clients without photos, whose server does not answer."""
    return FleetConfig(
        server="https://127.0.0.1:1",
        clients=5,
        pool=PhotoPool(root=tmp_path, class_names=("a", "b"), train=((), ()), test=((), ()), skipped={}),
        partition=Partition(name=PartitionName.CAMERA_IID, seed=7, per_class=1),
        plan=FaultPlan(),
        key=bytes(32),
        state=tmp_path,
        workers=2,
        evaluator_token="secret",
    )
