"""Finished runs, kept one by one: compressed, and the same bytes for the same results."""

import gzip
import json
from pathlib import Path

from fedlens.compare.kept import KEPT, PLANNED_FILE, STUDY_FILE, read
from fedlens.compare.plan import RESULT_FILE, RUNS
from fedlens.compare.results import write_json
from fedlens.whole_file import replacing

_SUFFIX = ".json.gz"
# When results were last changed that this process has compared; a study is looked at every few seconds, over hours.
_compared: dict[Path, int] = {}


def keep(study_folder: Path, into: Path) -> int:
    """Keep the finished runs of a study's folder; returns the number of runs that are new or have changed.

    Raises:
        StudyError: A file of the study cannot be read.
    """
    new = 0
    planned = read(study_folder / PLANNED_FILE) if (study_folder / PLANNED_FILE).is_file() else None
    for result in sorted(study_folder.glob(f"{RUNS}/*/seed-*/{RESULT_FILE}")):
        place = into / result.parents[1].name / f"{result.parent.name}{_SUFFIX}"
        changed = result.stat().st_mtime_ns
        if _compared.get(result) == changed and place.is_file():
            continue
        run = read(result)
        if planned is not None and run["fingerprint"] not in planned:
            continue  # of an earlier command's settings, and about to be run anew
        _compared[result] = changed
        if place.is_file() and read(place)["fingerprint"] == run["fingerprint"]:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as partial:
            partial.write_bytes(gzip.compress(json.dumps(run, separators=(",", ":")).encode(), mtime=0))
        new += 1
    if new:
        study = read(study_folder / STUDY_FILE)
        # Where somebody's photos lie is nobody's business; their digest is in each run.
        study["photos"]["source"] = Path(study["photos"]["source"]).name
        write_json(into / STUDY_FILE, study)
        if planned is not None:
            # Kept runs of other settings are no pairs with the new ones: they do not count until they are repeated.
            write_json(into / PLANNED_FILE, planned)
    return new


def restore(kept: Path, study_folder: Path) -> None:
    """Put kept runs into a study's folder, so that `fedlens compare` does not repeat them."""
    for place in kept.glob(KEPT):
        result = study_folder / RUNS / place.parent.name / place.name.removesuffix(_SUFFIX) / RESULT_FILE
        if not result.is_file():
            result.parent.mkdir(parents=True, exist_ok=True)
            write_json(result, read(place))
