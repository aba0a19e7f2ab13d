"""A server without sockets for each test, and servers that hold states elsewhere."""

import os
from collections.abc import Iterator
from contextlib import closing
from math import inf
from pathlib import Path

import pytest

from fedlens_server.http.observing import requests
from fedlens_server.store import writing_thread
from tests.server.elsewhere import HERE, Cluster, Gateway, running_cluster, running_gateway
from tests.server.fakes import Bench


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server, for tests that leave it running; others start their own."""
    with running_cluster() as found:
        yield found


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    """An S3 server; as `cluster`."""
    with running_gateway() as found, pytest.MonkeyPatch.context() as patched:
        for name, value in found.environment().items():
            patched.setenv(name, value)
        yield found


@pytest.fixture(scope="session", autouse=True)
def _states(request: pytest.FixtureRequest) -> None:
    """Where the states of servers are; `make test-slow` runs all tests of servers with them elsewhere, too."""
    if os.environ.get("FEDLENS_TEST_STATE") == "elsewhere":
        HERE.append((request.getfixturevalue("cluster"), request.getfixturevalue("gateway")))


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_slow() -> Iterator[None]:
    """No log depends on how busy the machine is; a test of what is told of slow work sets these anew."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (writing_thread, requests):
            patched.setattr(module, "SLOW_S", inf)
        yield


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A fresh server in a folder of its own."""
    with closing(Bench(tmp_path / "state")) as opened:
        yield opened
