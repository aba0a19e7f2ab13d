"""Settings that the round engine would refuse, found between export and the first run."""

from collections.abc import Sequence
from pathlib import Path

from fedlens.compare.plan import RunPlan
from fedlens.compare.study import StudyError
from fedlens_proto import manifest
from fedlens_server.engine.phases import plan
from fedlens_server.engine.view import TaskBundle
from fedlens_server.errors import Malformed
from fedlens_server.planning.task_settings import parse


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
            raise StudyError(f"methods.{label}: {str(error).removeprefix('task settings: ')}") from error
