"""The tasks of runs, and how a run is interrupted."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from fedlens.compare.run.running import RunProgress


class Stopped(Exception):
    """Somebody pulls the plug."""


def stop_after(rounds: int | None) -> Callable[[RunProgress], None]:
    """What a run is to call after each commit, to be stopped after this one; None: never."""

    def stop(committed: RunProgress) -> None:
        if committed.rounds == rounds:
            raise Stopped

    return stop


def settings(clients: int, **others: Any) -> str:
    """Settings of a task."""
    return json.dumps({"method": "fedavg", "population": clients, "seed": sha256(b"runs").hexdigest()} | others)
