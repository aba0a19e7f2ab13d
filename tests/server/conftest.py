"""A server without sockets for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.fakes import Bench
from tests.server.fakes import bench as open_bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A fresh server in a folder of its own."""
    with open_bench(tmp_path / "state") as opened:
        yield opened
