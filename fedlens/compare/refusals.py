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
from fedlens_server.planning.task_settings import check_hyper_values, parse


def check_bundles(runs: Sequence[RunPlan]) -> None:
    """Check each method's bundles, and its task's hyper-parameters against them, before any is exported.

    Seeds change only a bundle's weights.

    Raises:
        StudyError: A bundle cannot be exported, or has no such hyper-parameter; the text names the method's label.
    """
    # Late, because torch takes seconds to import.
    from fedlens_export.errors import ExportError
    from fedlens_export.exporting import ExportSpec, check_spec

    for label, run in {run.label: run for run in runs}.items():
        for bundle in run.bundles:
            try:
                spec = ExportSpec(**bundle.settings)
                check_spec(spec)
                if not spec.concatenated:
                    check_hyper_values(parse(run.settings), (hyper.message() for hyper in spec.hyper.values()))
            except (ExportError, Malformed) as error:
                raise _refused(label, error) from error


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
            raise _refused(label, error) from error


def _refused(label: str, error: Exception) -> StudyError:
    # A study has no bundles of its own, nor options of `fedlens export`.
    text = re.sub(r"^task settings: |manifests\[\d+\]\.", "", str(error))
    text = re.sub(r"export the bundle with --objective (\w+)", r'set objective = "\1"', text)
    return StudyError(f"methods.{label}: {text}")
