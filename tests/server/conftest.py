"""A server without sockets for each test, and servers that hold states elsewhere."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.server.elsewhere import Cluster, Gateway, running_cluster, running_gateway
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


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A fresh server in a folder of its own."""
    with closing(Bench(tmp_path / "state")) as opened:
        yield opened
