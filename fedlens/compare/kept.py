"""Results of finished runs, read again: a study's `results.json`, or runs that were kept one by one.

A study that is going on has `study.json`, the fingerprints of its runs in `planned.json`, which leave out finished runs
of an earlier command's settings, and the results of its finished runs; its `results.json`, if there is one, is of an
earlier command. A folder of kept runs has `study.json` and, for each run, `<label>/seed-<n>.json.gz`: what a study's
own folder has as `runs/<label>/seed-<n>/result.json`.
"""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedlens.compare.columns import COLUMNS, FORM, TITLES, Column
from fedlens.compare.report.summary import MethodSummary, Run, summarise
from fedlens.compare.study import MethodSection, Study, StudyError
from fedlens_edge_client.emulation.settings_errors import explain

RESULTS_FILE, STUDY_FILE, PLANNED_FILE = "results.json", "study.json", "planned.json"
_NEEDED = ("label", "seed", "fingerprint", "settings", "photos", "class_names", "rounds", "made")
# Other settings may differ between methods, whose own settings win; these say between which clients a difference is.
_SHARED = ("clients", "partition", "model")
KEPT, FINISHED = "*/seed-*.json.gz", "runs/*/seed-*/result.json"


@dataclass(frozen=True)
class Kept:
    """A study and those of its runs that are finished, by label and seed."""

    study: Study
    runs: Sequence[Run]

    @property
    def whole_seeds(self) -> "Kept":
        """Of the runs those of seeds that every method has finished: all methods can be compared on them."""
        finished = {(run["label"], run["seed"]) for run in self.runs}
        whole = {seed for seed in self.study.seeds if all((label, seed) in finished for label in self.study.methods)}
        return Kept(self.study, [run for run in self.runs if run["seed"] in whole])

    @cached_property
    def summaries(self) -> list[MethodSummary]:
        """The summary of each method that has a run, in the study's order."""
        by_label = {label: [run for run in self.runs if run["label"] == label] for label in self.study.methods}
        return [summarise(label, found) for label, found in by_label.items() if found]


def load(path: Path) -> Kept:
    """Read the results of a study: its folder, also while it is going on, its `results.json`, or a folder of kept runs.

    Raises:
        StudyError: There are no results, they cannot be read, or they have another form.
    """
    planned = read(path / PLANNED_FILE) if (path / PLANNED_FILE).is_file() else None
    files = sorted((*path.glob(KEPT), *path.glob(FINISHED)))
    # The results of a study that goes on are of an earlier command, perhaps with other settings or fewer seeds.
    if (path / STUDY_FILE).is_file() and ((planned and files) or not (path / RESULTS_FILE).is_file()):
        study = read(path / STUDY_FILE)
        runs = [read(file) for file in files]
    else:
        whole = read(path / RESULTS_FILE if path.is_dir() else path)
        study, runs = (whole.get("study"), whole.get("runs", [])) if isinstance(whole, dict) else (None, [])
    if not isinstance(runs, list):
        raise StudyError(f"{path}: not the results of a study: its runs are no list")
    if planned is not None:
        runs = [run for run in runs if isinstance(run, dict) and run.get("fingerprint") in planned]
        runs.sort(key=lambda run: planned.index(run["fingerprint"]))
    for run in runs:
        if not isinstance(run, dict) or run.get("form") != FORM:
            found = run.get("form", 1) if isinstance(run, dict) else "none"
            raise StudyError(
                f"{path}: results of form {found}, but this version reads form {FORM}: run the study again, or read "
                "them with the version that made them"
            )
        if lacking := [name for name in _NEEDED if name not in run]:
            raise StudyError(f"{path}: a run has no {lacking[0]!r}; its file is damaged: run the study again")
    try:
        return Kept(Study.model_validate(study), runs)
    except ValidationError as error:
        raise StudyError(f"{path}: not the results of a study: {explain(error, Study)}") from error


def load_all(paths: Sequence[Path]) -> Kept:
    """The results of several studies of the same clients and photos as one, with the settings of the first.

    Raises:
        StudyError: As `load`; or they are of other clients or photos, or two have different runs of one method.
    """
    studies = [load(path) for path in paths]
    first = studies[0]
    methods: dict[str, MethodSection] = {}
    settings: dict[str, tuple[MethodSection, str]] = {}
    runs: dict[tuple[str, int], Run] = {}
    for path, kept in zip(paths, studies, strict=True):
        for what in _SHARED:
            if getattr(kept.study, what) != getattr(first.study, what):
                raise StudyError(
                    f"{path}: its setting {what} is another than in {paths[0]}, so its seeds are no pairs with theirs: "
                    f"give studies that share {', '.join(_SHARED)}"
                )
        for label, method in kept.study.methods.items():
            own = method, kept.study.task_settings(label, seed=0)
            if settings.setdefault(label, own) != own:
                raise StudyError(f"{path}: its {label} has other settings than in {paths[0]}: give one of both")
        for run in kept.runs:
            start = next(iter(runs.values()), run)
            for what in ("photos", "class_names"):
                if run[what] != start[what]:
                    raise StudyError(
                        f"{path}: made with other photos than {paths[0]}; their accuracies cannot be compared: give "
                        "studies that were run with the same --photos"
                    )
            known = runs.setdefault((run["label"], run["seed"]), run)
            if known["fingerprint"] != run["fingerprint"]:
                raise StudyError(
                    f"{path}: another {run['label']}, seed {run['seed']}, than in {paths[0]}: give one of both"
                )
        methods |= {label: method for label, method in kept.study.methods.items() if label not in methods}
    seeds = dict.fromkeys(seed for kept in studies for seed in kept.study.seeds)
    study = first.study.model_copy(update={"methods": methods, "seeds": tuple(seeds)})
    return Kept(study, list(runs.values()))


def column(name: str) -> Column:
    """The column of this name or title.

    Raises:
        StudyError: There is none.
    """
    for known in COLUMNS:
        if name in (known, TITLES[known]):
            return known
    raise StudyError(f"--column: found {name!r}, must be one of {', '.join(COLUMNS)}")


def read(path: Path) -> Any:
    """JSON values of a file, perhaps compressed.

    Raises:
        StudyError: There is no such file, or it cannot be read.
    """
    try:
        raw = path.read_bytes()
        return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except FileNotFoundError as error:
        raise StudyError(f"{path}: there are no results; give the folder of a study, or its {RESULTS_FILE}") from error
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise StudyError(f"{path}: cannot be read as results: {error}") from error
