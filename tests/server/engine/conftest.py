"""Servers in whose tasks a round is open, or whose methods are made for tests."""

import pytest

from fedlens_server.methods import METHODS
from tests.server.fakes import Bench
from tests.server.patchwork import METHOD


@pytest.fixture
def running(bench: Bench) -> Bench:
    """A task of three rounds, in its first, with Alice and Bob."""
    return bench.start()


@pytest.fixture
def patchwork(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A server that knows the method Patchwork."""
    monkeypatch.setitem(METHODS, "patchwork", METHOD)
    return bench
