"""Fleets for tests."""

from pathlib import Path
from typing import Any

from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.partitions import Partition, PhotoPool


def fleet_of(pool: PhotoPool, partition: Partition, state: Path, **others: Any) -> FleetConfig:
    """A fleet with an evaluator in one process, with the partition's clients."""
    usual = {"server": "", "clients": partition.clients, "plan": FaultPlan(), "key": bytes(32), "workers": 1}
    return FleetConfig(pool=pool, partition=partition, state=state, **usual | {"evaluator_token": "evaluator"} | others)  # type: ignore[arg-type]  # names vary
