import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import WorkerEnded
from fedlens_edge_client.emulation.fleet.processes import FleetProcesses, WorkerDied
from fedlens_edge_client.emulation.fleet.running import run_fleet
from fedlens_edge_client.errors import Untrusted


@pytest.fixture
def few_files() -> Iterator[tuple[int, int]]:
    """This process's limits of open files: a low one, and one up to which it may be raised."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = (512, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    yield limits
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_workers_may_open_as_many_files_as_the_system_allows(config: FleetConfig, few_files: tuple[int, int]) -> None:
    _, most = few_files

    with FleetProcesses(replace(config, workers=1)) as processes:
        of_worker = resource.prlimit(processes.pids[0], resource.RLIMIT_NOFILE)

    assert of_worker == (most, most)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == few_files


def test_a_dead_worker_is_named_with_its_first_clients(config: FleetConfig) -> None:
    with FleetProcesses(replace(config, workers=1, clients=500, evaluator_token=None)) as processes:
        os.kill(processes.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"; client 0, .*, client 4 and 495 more\) was killed by SIGKILL"):
            list(processes.messages(60.0))


def test_a_sigterm_to_all_processes_of_a_fleet_that_is_starting_ends_no_worker(config: FleetConfig) -> None:
    with FleetProcesses(config) as processes:
        for pid in processes.pids:
            os.kill(pid, signal.SIGTERM)
        processes.stop()
        ended = set[int]()
        while processes.running:
            ended |= {message.worker for message in processes.messages(60.0) if isinstance(message, WorkerEnded)}

    assert ended == {0, 1}


def test_an_address_or_ca_that_no_client_could_use_starts_no_worker(config: FleetConfig, tmp_path: Path) -> None:
    started: list[int] = []
    (tmp_path / "ca.pem").write_text("not a certificate")

    with pytest.raises(Untrusted, match=r"ca\.pem cannot be read as certificates"):
        run_fleet(replace(config, ca=tmp_path / "ca.pem"), on_started=started.extend)
    with pytest.raises(Untrusted, match="'nonsense' is no address"):
        run_fleet(replace(config, server="nonsense"), on_started=started.extend)

    assert started == []
