"""Figures in the files of researchers' tools, read back with these tools."""

import csv
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from fedlens.compare.report.exports import tracked
from fedlens.reports import tracking
from fedlens.reports.tracking import (
    NotWritten,
    Tracked,
    TrackerMissing,
    check_installed,
    log_to_mlflow,
    write_csv,
    write_tensorboard,
)
from tests.fedlens.compare.test_kept import made

RUN = Tracked(
    "fedavg/seed-1", {"rounds": 2}, [(1, {"global_accuracy": 0.25}), (3, {"global_accuracy": 0.5, "loss": 2})]
)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads from a folder."""
    found: Any = EventAccumulator(str(folder))
    found.Reload()
    return {
        tag: [(event.step, float(event.tensor_proto.float_val[0])) for event in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


def test_tensorboard_reads_each_figure_at_its_round(tmp_path: Path) -> None:
    write_tensorboard(tmp_path, [RUN])

    assert scalars(tmp_path / "fedavg" / "seed-1") == {
        "global_accuracy": [(1, 0.25), (3, 0.5)],
        "loss": [(3, 2.0)],
    }


def test_written_again_nothing_is_there_twice(tmp_path: Path) -> None:
    write_tensorboard(tmp_path, [RUN])
    write_tensorboard(tmp_path, [RUN])

    assert len(scalars(tmp_path / "fedavg" / "seed-1")["global_accuracy"]) == 2


def test_mlflow_is_given_each_run_with_its_settings_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    mlflow = ModuleType("mlflow")
    for name in ("set_experiment", "start_run", "log_params", "log_metrics"):
        monkeypatch.setattr(mlflow, name, partial(_noted, calls, name), raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    run = Tracked("fedavg/seed-1", {"rounds": 2, "hyper": {"lr": 0.5}}, RUN.rounds)

    log_to_mlflow("study", [run])

    assert calls == [
        ("set_experiment", ("study",), {}),
        ("start_run", (), {"run_name": "fedavg/seed-1"}),
        ("log_params", ({"rounds": 2, "hyper.lr": 0.5},), {}),
        ("log_metrics", ({"global_accuracy": 0.25},), {"step": 1}),
        ("log_metrics", ({"global_accuracy": 0.5, "loss": 2},), {"step": 3}),
    ]


def _noted(calls: list[Any], name: str, *arguments: Any, **options: Any) -> nullcontext[None]:
    calls.append((name, arguments, options))
    return nullcontext()


class FakeMlflow(ModuleType):
    """MLflow with one experiment; runs by name and tag."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.runs: list[dict[str, str]] = []

    @contextmanager
    def start_run(self, run_name: str) -> Iterator[None]:
        self.runs.append({"mlflow.runName": run_name})
        yield

    def set_tag(self, name: str, value: str) -> None:
        self.runs[-1][name] = value

    def search_runs(self, filter_string: str, **options: object) -> list[dict[str, str]]:
        wanted = re.findall(r"tags\.`([\w.]+)` = '([^']*)'", filter_string)
        return [run for run in self.runs if all(run.get(name) == value for name, value in wanted)]

    def set_experiment(self, name: str) -> None:
        pass

    log_params = set_experiment

    def log_metrics(self, found: dict[str, float], step: int) -> None:
        if found.get("loss") == float("inf"):
            raise OSError("the server is gone")


def test_mlflow_is_not_given_a_run_twice_unless_it_has_changed_or_was_logged_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mlflow = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    # Two methods may have the same settings, and then the same fingerprint.
    one, same, changed = (made(label, 1, 3, fingerprint=mark) for label, mark in (("a", "1"), ("b", "1"), ("a", "2")))
    cut_short = Tracked("c/seed-1", {}, [(1, {"loss": float("inf")})], "3")

    with pytest.raises(OSError, match="the server is gone"):
        log_to_mlflow("study", [*map(tracked, (one, same)), cut_short])
    log_to_mlflow("study", [*map(tracked, (one, same, changed)), replace(cut_short, rounds=[])])

    logged = [run["mlflow.runName"] for run in mlflow.runs]
    assert logged == ["a/seed-1", "b/seed-1", "c/seed-1", "a/seed-1", "c/seed-1"]


def test_a_csv_has_a_column_for_every_figure_and_no_value_where_there_is_none(tmp_path: Path) -> None:
    write_csv(tmp_path / "rounds.csv", ({"round": number, **found} for number, found in RUN.rounds))

    with (tmp_path / "rounds.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"round": "1", "global_accuracy": "0.25", "loss": ""},
            {"round": "3", "global_accuracy": "0.5", "loss": "2"},
        ]


def test_a_tool_that_is_missing_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tracking, "find_spec", lambda name: None if name == "mlflow" else importlib.util.find_spec(name)
    )

    check_installed(tensorboard=True, mlflow=False)
    with pytest.raises(TrackerMissing, match="mlflow is not installed: pip install mlflow"):
        check_installed(tensorboard=True, mlflow=True)


def test_a_file_in_place_of_the_folder_of_tensorboard_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(NotWritten, match=r"file cannot be written: .*; name another folder"):
        write_tensorboard(tmp_path / "file", [RUN])
