"""Means over the seeds of a study: from the results of runs to columns and curves."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlens.compare.columns import COLUMNS, EXAMINED, MOMENTS, Column
from fedlens.reports.task_report import macro

_WITHOUT_UPDATE = ("failed", "quarantined", "pending")
Run = Mapping[str, Any]  # as `results.run_values` gives it


@dataclass(frozen=True, slots=True)
class Value:
    """A mean over seeds, from 0 to 1.

    Attributes:
        deviation: Sample deviation, with n - 1; None for a single seed.
    """

    mean: float
    deviation: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Value":
        """The mean of one value for each seed, at least one."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve, after committed `rounds`; until then all clients sent `bytes_up`, also in abandoned ones."""

    rounds: int
    bytes_up: float
    value: Value


@dataclass(frozen=True)
class MethodSummary:
    """One method over all seeds.

    Attributes:
        columns: Columns with a value for every seed.
        bytes_up: Bytes that all clients send in a run, mean over seeds; `bytes_down` likewise.
        bytes_up_each: Bytes that a client sends in a round in which it trains for others, mean over these and over
            seeds; None if no client did.
        seconds: Duration of a run on this machine, mean over seeds.
        curves: Curves of `global_accuracy`, and of `pooled_accuracy`: each round's clients with their own models.
        measured: By seed, how many clients have the personal figures of the end, such as `2 of 4`; not if all have.
        faults: A line for each abandoned round and each member without a used update.
        by_seed: Columns of each seed's run.
        confusion: Test photos by true and predicted class, summed over seeds, as `run_confusion`; None without one.
        by_camera: Accuracy over all clients' photos together, by group of the final examination and camera.
    """

    label: str
    columns: Mapping[Column, Value]
    bytes_up: float
    bytes_down: float
    bytes_up_each: float | None
    seconds: float
    curves: Mapping[Column, tuple[Point, ...]]
    measured: Mapping[int, str]
    faults: tuple[str, ...]
    by_seed: Mapping[int, Mapping[Column, float]]
    confusion: Sequence[Sequence[int]] | None
    by_camera: Mapping[tuple[Column, str], Value]


def summarise(label: str, runs: Sequence[Run]) -> MethodSummary:
    """The summary of a method's runs, one for each seed, at least one."""
    each = [run_columns(run) for run in runs]
    sent = [per_client for run in runs if (per_client := _sent_by_a_client(run)) is not None]
    cameras = [_by_camera(run) for run in runs]
    return MethodSummary(
        label=label,
        columns={
            column: Value.of(values)
            for column in COLUMNS
            if len(values := [found[column] for found in each if column in found]) == len(runs)
        },
        bytes_up=statistics.fmean(_total(run, "bytes_up") for run in runs),
        bytes_down=statistics.fmean(_total(run, "bytes_down") for run in runs),
        bytes_up_each=statistics.fmean(sent) if sent else None,
        seconds=statistics.fmean(sum(run["made"]["seconds"].values()) for run in runs),
        curves={
            "global_accuracy": _curve(runs, "global", 1),
            # A model that clients keep is evaluated when it is trained; else they start from the rounds before.
            "pooled_accuracy": _curve(runs, "personal_personal", 1) or _curve(runs, "personal_before", 0),
        },
        measured={run["seed"]: found for run in runs if (found := _measured_clients(run))},
        faults=tuple(fault for run in runs for fault in _faults(run)),
        confusion=_summed([matrix for run in runs if (matrix := run_confusion(run)) is not None]),
        by_seed={run["seed"]: found for run, found in zip(runs, each, strict=True)},
        by_camera={
            key: Value.of([found[key] for found in cameras if key in found])
            for key in sorted(
                {key for found in cameras for key in found}, key=lambda key: (list(EXAMINED).index(key[0]), key[1])
            )
        },
    )


def run_columns(run: Run) -> dict[Column, float]:
    """The figures at the end of one run: of the last model that was measured globally, and of the last personal round.

    A personal accuracy, or one of the final examination, is the mean over clients; pooled accuracy, precision and
    recall are of all clients' test photos together.
    """
    found: dict[Column, float] = {}
    rounds = committed(run)
    tested = [entry["global"] for entry in rounds if entry["global"]]
    if tested:
        found["global_accuracy"] = tested[-1]["correct"] / tested[-1]["count"]
        if tested[-1]["confusion"]:
            found["global_precision"], found["global_recall"] = macro(tested[-1]["confusion"])
    if (personal := _personal_round(run)) is not None:
        for moment in MOMENTS:
            sums = _last_trained(run) if moment.key == "last" else _of_members(personal, moment.key)
            if tested := [each for each in sums.values() if each["count"]]:
                found[moment.mean] = statistics.fmean(each["correct"] / each["count"] for each in tested)
                found[moment.pooled] = sum(each["correct"] for each in tested) / sum(each["count"] for each in tested)
        if confusion := personal["personal_before"]["confusion"]:
            found["personal_precision"], found["personal_recall"] = macro(confusion)
    for column, group in EXAMINED.items():
        examined = [client[group] for client in run.get("examination", ()) if group in client]
        if examined:
            found[column] = statistics.fmean(each["correct"] / each["count"] for each in examined)
    return found


def _personal_round(run: Run) -> Mapping[str, Any] | None:
    """The last committed round, in which all clients were measured; None if nobody was."""
    rounds = committed(run)
    is_measured = run["settings"]["personal_evaluation"] and rounds and rounds[-1]["personal_before"]
    return rounds[-1] if is_measured else None


def _measured_clients(run: Run) -> str:
    """How many clients of how many were measured at the end, such as `2 of 4`; empty: all, or no personal figures."""
    if (personal := _personal_round(run)) is None:
        return ""
    members = personal["members"]
    measured = sum("before" in member for member in members)
    asked = sum(member["state"] in ("reported", *_WITHOUT_UPDATE) for member in members)
    return "" if measured == asked else f"{measured} of {asked}"


def run_confusion(run: Run) -> Sequence[Sequence[int]] | None:
    """The last confusion matrix of the global model; without one, that of the personal models before training."""
    found: Sequence[Sequence[int]] | None = None
    for what in ("personal_before", "global"):
        for entry in committed(run):
            if entry[what] and entry[what]["confusion"]:
                found = entry[what]["confusion"]
    return found


def _summed(matrices: Sequence[Sequence[Sequence[int]]]) -> Sequence[Sequence[int]] | None:
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)] or None


def _of_members(entry: Mapping[str, Any], moment: str) -> dict[str, Mapping[str, int]]:
    """The sums of a round's members at a moment, by client."""
    return {member["client"]: member[moment] for member in entry["members"] if moment in member}


def _last_trained(run: Run) -> dict[str, Mapping[str, int]]:
    """Each client's sums with the model of its own last training; before any training, with what it would use.

    A client that trains a model to keep beside the one that it sends, as in Ditto, is judged by that one.
    """
    found = _of_members(committed(run)[-1], "before")
    for entry in run["rounds"]:
        found |= _of_members(entry, "after") | _of_members(entry, "personal")
    return found


def _by_camera(run: Run) -> dict[tuple[Column, str], float]:
    totals: dict[tuple[Column, str], tuple[int, int]] = {}
    for client in run.get("examination", ()):
        for column, group in EXAMINED.items():
            for camera, sums in client.get(group, {"cameras": {}})["cameras"].items():
                count, correct = totals.get((column, camera), (0, 0))
                totals[column, camera] = count + sums["count"], correct + sums["correct"]
    return {key: correct / count for key, (count, correct) in totals.items()}


def _sent_by_a_client(run: Run) -> float | None:
    members = [member for entry in committed(run) for member in entry["members"] if member["state"] == "reported"]
    # A phase that only counts labels trains nothing; what is only trained for the last evaluation is not sent.
    trained = [member for member in members if "after" in member]
    if not trained:  # with dp, all members train, and none tells how many photos it has
        with_dp = run["settings"].get("dp") is not None
        trained = [member for member in members if (with_dp or member["photos"]) and "fine_tuned" not in member]
    return statistics.fmean(member["bytes_up"] for member in trained) if trained else None


def _curve(runs: Sequence[Run], what: str, after: int) -> tuple[Point, ...]:
    """Points at which every seed was measured; `after` is 1 for what is measured once the round has committed."""
    series = [_measured(run, what, after) for run in runs]
    shared = sorted(set.intersection(*(set(points) for points in series)))
    return tuple(
        Point(
            rounds=number,
            bytes_up=statistics.fmean(points[number][0] for points in series),
            value=Value.of([points[number][1] for points in series]),
        )
        for number in shared
    )


def _measured(run: Run, what: str, after: int) -> dict[int, tuple[float, float]]:
    """Bytes sent so far, also in abandoned rounds, and accuracy, by number of committed rounds."""
    found: dict[int, tuple[float, float]] = {}
    number = sent = 0
    for entry in run["rounds"]:
        before = sent
        sent += entry["bytes_up"]
        if entry["state"] != "committed":
            continue
        if entry.get(what):
            found[number + after] = (sent if after else before, entry[what]["correct"] / entry[what]["count"])
        number += 1
    return found


def committed(run: Run) -> list[Mapping[str, Any]]:
    """The entries of committed rounds, in order."""
    return [entry for entry in run["rounds"] if entry["state"] == "committed"]


def _total(run: Run, what: str) -> float:
    total: float = sum(entry[what] for entry in run["rounds"])
    return total


def _faults(run: Run) -> Iterable[str]:
    for entry in run["rounds"]:
        where = f"seed {run['seed']}, round {entry['round']}"
        if entry["state"] == "abandoned":
            yield f"{where}: abandoned, {entry['reason']}"
        for member in entry["members"]:
            if member["state"] in _WITHOUT_UPDATE:
                why = member["reason"] or "did not report in time"
                yield f"{where}, {member['client']}: {member['state']}, {why}"
