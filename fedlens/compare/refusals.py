"""Settings that the export or the round engine would refuse, found before hours of work."""

import re
from collections.abc import Sequence
from pathlib import Path

from fedlens.compare.plan import RunPlan
from fedlens.compare.study import StudyError
from fedlens_proto import manifest
from fedlens_server.engine.phases import plan
from fedlens_server.engine.task import TaskBundle
from fedlens_server.errors import Malformed
from fedlens_server.planning.task_settings import parse


def check_bundles(runs: Sequence[RunPlan]) -> None:
    """Check the names and settings of each method's bundles before any is exported; seeds change only their weights.

    Raises:
        StudyError: A bundle cannot be exported; the text names the method's label.
    """
    # Late, because torch takes seconds to import.
    from fedlens_export.errors import ExportError
    from fedlens_export.exporting import ExportSpec, check_spec

    for label, run in {run.label: run for run in runs}.items():
        for bundle in run.bundles:
            try:
                check_spec(ExportSpec(**bundle.settings))
            except ExportError as error:
                raise StudyError(f"methods.{label}: {error}") from error


def check(study_folder: Path, runs: Sequence[RunPlan]) -> None:
    """Check each method's task against its bundles; seeds change only a bundle's weights.

    Raises:
        StudyError: A task does not fit; the text names the method's label and the key.
    """
    for label, run in {run.label: run for run in runs}.items():
        raw = [(study_folder / bundle.folder / manifest.MANIFEST_FILE).read_bytes() for bundle in run.bundles]
        try:
            plan(parse(run.settings), tuple(TaskBundle(each, manifest.parse(each)) for each in raw))
        except Malformed as error:
            # A study has no bundles of its own, nor options of `fedlens export`.
            text = re.sub(r"^task settings: |manifests\[\d+\]\.", "", str(error))
            text = re.sub(r"export the bundle with --objective (\w+)", r'set objective = "\1"', text)
            raise StudyError(f"methods.{label}: {text}") from error
