"""Ctrl-C and SIGTERM, which reach every process of a group: in a child process the parent process decides."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold both signals back, in this process until the end of the block, in those started in it until `ignore`."""
    # The first process that is spawned starts the tracker, which unblocks both signals (Python 3.11).
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """Ignore both signals from now on, and those that were held back."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Programs that this process starts inherit what is blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
