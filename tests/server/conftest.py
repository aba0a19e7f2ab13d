"""A server without sockets for each test."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.server.fakes import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A fresh server in a folder of its own."""
    with closing(Bench(tmp_path / "state")) as opened:
        yield opened
