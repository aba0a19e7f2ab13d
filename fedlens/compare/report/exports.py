"""A study's figures for other programs: CSV files, TensorBoard and MLflow."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedlens.compare.columns import COLUMNS
from fedlens.compare.report.differences import differences
from fedlens.compare.report.summary import MethodSummary, Run, committed
from fedlens.compare.study import Study
from fedlens.reports.task_report import LABELS, figures, with_ratios
from fedlens.reports.tracking import Tracked, write_csv

RESULTS_CSV, DIFFERENCES_CSV, ROUNDS_CSV = "results.csv", "differences.csv", "rounds.csv"
_DIFFERENCE = ("method", "baseline", "column", "seeds", "difference", "low", "high", "p")


def write_csv_files(folder: Path, study: Study, runs: Sequence[Run], summaries: Sequence[MethodSummary]) -> None:
    """Write, with their folder, the final figures, the paired differences and the figures by round, from 0 to 1."""
    with suppress(OSError):  # `write_csv` says why there is no such folder
        folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / RESULTS_CSV, _final_rows(summaries), ("method", "seed", "column", "value"))
    write_csv(folder / DIFFERENCES_CSV, _difference_rows(study, summaries), _DIFFERENCE)
    rows = (
        {"method": run["label"], "seed": run["seed"], "round": number, **found}
        for run in runs
        for number, found in tracked(run).rounds
    )
    write_csv(folder / ROUNDS_CSV, rows)


def tracked(run: Run) -> Tracked:
    """The figures of one run by committed round."""
    parameters = {**run["settings"], "partition": run["partition"], "clients": run["clients"], "seed": run["seed"]}
    rounds = [(number, figures(_as_shown(entry))) for number, entry in enumerate(committed(run), start=1)]
    return Tracked(f"{run['label']}/seed-{run['seed']}", parameters, rounds, run["fingerprint"])


def _final_rows(summaries: Sequence[MethodSummary]) -> Iterator[dict[str, object]]:
    for summary in summaries:
        for seed, found in summary.by_seed.items():
            for column in COLUMNS:
                if column in found:
                    yield {"method": summary.label, "seed": seed, "column": column, "value": found[column]}


def _difference_rows(study: Study, summaries: Sequence[MethodSummary]) -> Iterator[dict[str, object]]:
    for found in differences(study, summaries):
        low, high = found.interval or (None, None)
        values = (found.label, found.baseline, found.column, found.seeds, found.mean, low, high, found.p)
        yield dict(zip(_DIFFERENCE, values, strict=True))


def _as_shown(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A round of a study's results in the form of `round_values`, as far as `figures` reads it."""
    personal: dict[str, Any] = {}
    for name in LABELS.values():
        tested = [member[name] for member in entry["members"] if member.get(name, {}).get("count")]
        pooled = entry[f"personal_{name}"]
        if pooled is not None:
            mean = statistics.fmean(each["correct"] / each["count"] for each in tested)
            personal[name] = {"mean_accuracy": mean, "pooled": with_ratios(pooled)}
    measured = entry["global"]
    return {
        "global": None if measured is None else with_ratios(measured),
        "personal": personal,
        "bytes_received": entry["bytes_up"],
        "bytes_sent": entry["bytes_down"],
    }
