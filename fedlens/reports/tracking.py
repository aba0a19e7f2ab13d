"""Figures by round, for the tools that researchers use: CSV, TensorBoard event files and MLflow."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from fedlens.errors import FedlensError
from fedlens.whole_file import replacing

Rows = Iterable[Mapping[str, object]]
_FINGERPRINT = "fedlens.fingerprint"


class NotWritten(FedlensError):
    """A file of figures cannot be written; the text names it and the reason."""


class TrackerMissing(FedlensError):
    """A tool is not installed; the text says how to install it."""


@dataclass(frozen=True)
class Tracked:
    """The figures of one run.

    Attributes:
        name: Name of the run; a `/` divides groups.
        parameters: Settings by name; those in a table as `table.name` in MLflow.
        rounds: The number of each round that was committed, and its figures by name.
        fingerprint: Digest of everything that the figures depend on; None: they change with time.
    """

    name: str
    parameters: Mapping[str, object]
    rounds: Sequence[tuple[int, Mapping[str, float]]]
    fingerprint: str | None = None


def write_csv(path: Path, rows: Rows, columns: Sequence[str] = ()) -> None:
    """Write a table completely or not at all: these columns, and then one for every other key.

    Raises:
        NotWritten: The file cannot be written.
    """
    listed = [dict(row) for row in rows]
    columns = list(dict.fromkeys([*columns, *(key for row in listed for key in row)]))
    try:
        with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(listed)
    except OSError as error:
        raise NotWritten(f"{path} cannot be written: {error.strerror}; name another file") from error


def check_installed(*, tensorboard: bool, mlflow: bool) -> None:
    """Check early that the tools that will be needed are there.

    Raises:
        TrackerMissing: One is not installed.
    """
    for wanted, module, advice in ((tensorboard, "tensorboard", "'fedlens[tracking]'"), (mlflow, "mlflow", "mlflow")):
        if wanted and find_spec(module) is None:
            raise TrackerMissing(f"{module} is not installed: pip install {advice}")


def write_tensorboard(folder: Path, runs: Iterable[Tracked]) -> None:
    """Write TensorBoard's event files, a folder for each run; those of an earlier call are replaced.

    Raises:
        NotWritten: They cannot be written.
    """
    from tensorboard.summary import Writer  # type: ignore[import-untyped]  # it ships no types

    try:
        for run in runs:
            place = folder / run.name
            for old in place.glob("events.out.tfevents.*"):
                old.unlink()
            writer = Writer(str(place))
            for number, found in run.rounds:
                for name, value in found.items():
                    writer.add_scalar(name, value, step=number)
            writer.close()
    except OSError as error:
        raise NotWritten(f"{folder} cannot be written: {error.strerror}; name another folder") from error


def log_to_mlflow(experiment: str, runs: Iterable[Tracked]) -> None:
    """Log each run to MLflow, at the server or in the folder that MLFLOW_TRACKING_URI names.

    A run that the experiment has, with the same fingerprint, is left out.
    """
    mlflow = import_module("mlflow")  # not among our dependencies
    mlflow.set_experiment(experiment)
    for run in runs:
        if run.fingerprint is not None:
            same = f"tags.`mlflow.runName` = '{run.name}' and tags.`{_FINGERPRINT}` = '{run.fingerprint}'"
            if mlflow.search_runs(filter_string=same, max_results=1, output_format="list"):
                continue
        with mlflow.start_run(run_name=run.name):
            mlflow.log_params(_flat(run.parameters))
            for number, found in run.rounds:
                mlflow.log_metrics(dict(found), step=number)
            if run.fingerprint is not None:
                # Last: a run that was logged in part is logged again.
                mlflow.set_tag(_FINGERPRINT, run.fingerprint)


def _flat(parameters: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            found[key] = value
    return found
