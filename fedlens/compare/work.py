"""The jobs of a study: backbones, bundles, runs; each does nothing when it has been done before."""

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlens.compare.bundles import BackboneSpec, BundleSpec, export, pretrain
from fedlens.compare.plan import FEATURES, RunPlan
from fedlens.compare.report.summary import run_columns

TIMES_FILE, FINGERPRINT_FILE, MODEL_FILE = "times.jsonl", "fingerprint", "model.blob"
_TELL_EVERY_S = 0.1


@dataclass(frozen=True)
class Pretraining:
    """Train a backbone."""

    study_folder: Path
    spec: BackboneSpec

    @property
    def name(self) -> str:
        """For people."""
        return f"pretraining {self.spec.model}"

    def work(self, tell: Callable[[Any], None]) -> None:
        """As `bundles.pretrain`."""
        pretrain(self.study_folder, self.spec, tell)

    def known_errors(self) -> tuple[type[Exception], ...]:
        """Of the export."""
        return _export_errors()


@dataclass(frozen=True)
class Exporting:
    """Export a bundle."""

    study_folder: Path
    spec: BundleSpec

    @property
    def name(self) -> str:
        """For people."""
        return f"exporting {self.spec.folder.removeprefix('bundles/')}"

    def work(self, tell: Callable[[Any], None]) -> None:
        """As `bundles.export`."""
        export(self.study_folder, self.spec, tell)

    def known_errors(self) -> tuple[type[Exception], ...]:
        """Of the export."""
        return _export_errors()


@dataclass(frozen=True)
class Running:
    """Carry out a run, or go on with it."""

    study_folder: Path
    plan: RunPlan
    device: str

    @property
    def name(self) -> str:
        """For people."""
        return self.plan.name

    def work(self, tell: Callable[[Any], None]) -> None:
        """Have the result in the run's folder, and of what led to it only the model."""
        from fedlens.compare import results
        from fedlens.compare.run import running

        plan = self.plan
        _prepare(plan)
        last_told = 0.0

        def told(committed: running.Committed) -> None:
            nonlocal last_told
            now = time.monotonic()
            if now - last_told >= _TELL_EVERY_S or committed.rounds == committed.rounds_total:
                last_told = now
                tell(committed)

        with (plan.folder / TIMES_FILE).open("a", encoding="utf-8") as times:

            def ended(number: int, seconds: float) -> None:
                times.write(json.dumps([number, seconds]) + "\n")
                times.flush()

            answer = asyncio.run(
                running.run(
                    plan.fleet,
                    plan.settings,
                    tuple(self.study_folder / bundle.folder for bundle in plan.bundles),
                    features=self.study_folder / FEATURES,
                    device=self.device,
                    on_commit=told,
                    on_round=ended,
                )
            )
        if answer.model is not None:
            (plan.folder / MODEL_FILE).write_bytes(answer.model)
        values = results.run_values(plan, answer, _times(plan))
        results.write_json(plan.result, values)
        rounds, columns = answer.shown.task.rounds_total, run_columns(values)
        # The last model is measured after its commit, and the table shows what that found.
        tell(
            running.Committed(
                rounds=rounds,
                rounds_total=rounds,
                global_accuracy=columns.get("global_accuracy"),
                personal_accuracy=columns.get("personal_accuracy"),
            )
        )
        _leave_only_the_result(plan)

    def known_errors(self) -> tuple[type[Exception], ...]:
        """Of clients, the round engine and the run itself."""
        from fedlens.compare.run.running import RunFailed
        from fedlens_edge_client.errors import EdgeClientError
        from fedlens_proto.errors import ProtoError
        from fedlens_server.errors import ServerError

        return EdgeClientError, ProtoError, RunFailed, ServerError


def _prepare(plan: RunPlan) -> None:
    """Drop what is left of a run with other settings."""
    mark = plan.folder / FINGERPRINT_FILE
    found = mark.read_text(encoding="utf-8") if mark.is_file() else ""
    if found != plan.fingerprint:
        shutil.rmtree(plan.folder, ignore_errors=True)
        plan.folder.mkdir(parents=True)
        mark.write_text(plan.fingerprint, encoding="utf-8")


def _times(plan: RunPlan) -> dict[int, float]:
    """Seconds by round; one that was interrupted counts from the last start."""
    lines = (plan.folder / TIMES_FILE).read_text(encoding="utf-8").splitlines()
    return {int(number): float(seconds) for number, seconds in map(json.loads, lines)}


def _leave_only_the_result(plan: RunPlan) -> None:
    for path in plan.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    (plan.folder / TIMES_FILE).unlink()


def _export_errors() -> tuple[type[Exception], ...]:
    from fedlens_export.errors import ExportError
    from fedlens_proto.errors import ProtoError

    return ExportError, ProtoError, OSError
