"""What every test relies on."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heeded() -> Iterator[None]:
    """Whoever runs the tests in the background of a script has SIGINT ignored, and child processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
