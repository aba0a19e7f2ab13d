"""Servers in whose tasks a round is open, or whose methods are made for tests."""

from collections.abc import Iterator

import pytest

from tests.server.fakes import Bench
from tests.server.patchwork import registered


@pytest.fixture
def running(bench: Bench) -> Bench:
    """A task of three rounds, in its first, with Alice and Bob."""
    return bench.start()


@pytest.fixture
def patchwork(bench: Bench) -> Iterator[Bench]:
    """A server that knows the method Patchwork."""
    with registered():
        yield bench
