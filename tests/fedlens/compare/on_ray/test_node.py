"""A run at a node, with a Ray whose only node is this process."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedlens.compare import run_state
from fedlens.compare.on_ray import node
from fedlens.compare.on_ray.luggage import Luggage, without_photos
from fedlens.compare.run import running
from fedlens.compare.work import prepare
from fedlens.jobs import JobEnded
from fedlens.reports.made import made
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from tests.edge_client.photo_folders import write_files
from tests.fedlens.compare.test_plan import planned, study


class OneNode:
    """Ray, where a reference to an object is the object."""

    def put(self, value: Any) -> Any:
        return value

    def get(self, reference: Any) -> Any:
        return reference

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "node")


async def failing(fleet: FleetConfig, *given: Any, on_commit: Any, **others: Any) -> None:
    """A run whose task fails after its first round."""
    (fleet.state / "server").touch()
    on_commit(running.RunProgress(1, 2, None, None))
    raise running.RunFailed("the task is failed")


def test_a_run_that_failed_at_a_node_begins_anew_with_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", OneNode())
    monkeypatch.setattr(node, "keep_freed_memory", lambda: False)  # for the rest of the process
    monkeypatch.setattr(running, "run", failing)
    out = tmp_path / "out"
    run = planned(study(write_files(tmp_path / "photos", {"ant": 5, "bee": 5})), tmp_path, out).runs[0]
    prepare(run)
    state = run_state.Changes(run.folder).take()
    luggage = Luggage.pack(out, [run], tmp_path / "node")
    plan = without_photos(run, run.folder.relative_to(out))

    *told, end = node.carried_out(luggage, plan, state, "cpu", made(), None)
    luggage.remove("node")

    assert end == JobEnded(run.name, "the task is failed")
    for changes in (message for message in told if isinstance(message, bytes)):
        run_state.keep(run.folder, changes)
    assert (run.folder / "server").exists()
    prepare(run)
    assert not (run.folder / "server").exists()
