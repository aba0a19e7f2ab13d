"""The work of a study's run, in a process of its own."""

import asyncio
import json
import shutil
import time
from pathlib import Path

from fedlens.compare import results
from fedlens.compare.plan import FEATURES, RunPlan
from fedlens.compare.report.summary import run_columns
from fedlens.compare.run import running
from fedlens.jobs import Report

TIMES_FILE, FINGERPRINT_FILE, MODEL_FILE = "times.jsonl", "fingerprint", "model.blob"
_REPORT_EVERY_S = 0.1


def carry_out(study_folder: Path, plan: RunPlan, device: str, report: Report) -> None:
    """Carry out a run or resume it; leaves its result, model and fingerprint in the run's folder.

    Raises:
        RunFailed: The task failed.
        EdgeClientError, ProtoError, ServerError: A client or the round engine cannot go on.
    """
    _prepare(plan)
    last_reported = 0.0

    def committed(progress: running.RunProgress) -> None:
        nonlocal last_reported
        now = time.monotonic()
        if now - last_reported >= _REPORT_EVERY_S or progress.rounds == progress.rounds_total:
            last_reported = now
            report(progress)

    with (plan.folder / TIMES_FILE).open("a", encoding="utf-8") as times:

        def ended(number: int, seconds: float) -> None:
            times.write(json.dumps([number, seconds]) + "\n")
            times.flush()

        result = asyncio.run(
            running.run(
                plan.fleet,
                plan.settings,
                tuple(study_folder / bundle.folder for bundle in plan.bundles),
                features=study_folder / FEATURES,
                device=device,
                on_commit=committed,
                on_round=ended,
            )
        )
    if result.model is not None:
        (plan.folder / MODEL_FILE).write_bytes(result.model)
    values = results.run_values(plan, result, _times(plan))
    results.write_json(plan.result, values)
    rounds, columns = result.shown.task.rounds_total, run_columns(values)
    # The last model is evaluated after its commit; the table shows that evaluation.
    report(
        running.RunProgress(
            rounds=rounds,
            rounds_total=rounds,
            global_accuracy=columns.get("global_accuracy"),
            personal_accuracy=columns.get("personal_accuracy"),
        )
    )
    _remove_all_but_results(plan)


def _prepare(plan: RunPlan) -> None:
    """Remove the files of a run with other settings."""
    mark = plan.folder / FINGERPRINT_FILE
    found = mark.read_text(encoding="utf-8") if mark.is_file() else ""
    if found != plan.fingerprint:
        shutil.rmtree(plan.folder, ignore_errors=True)
        plan.folder.mkdir(parents=True)
        mark.write_text(plan.fingerprint, encoding="utf-8")


def _times(plan: RunPlan) -> dict[int, float]:
    """Seconds by round; those of a resumed round count from its last start."""
    lines = (plan.folder / TIMES_FILE).read_text(encoding="utf-8").splitlines()
    return {int(number): float(seconds) for number, seconds in map(json.loads, lines)}


def _remove_all_but_results(plan: RunPlan) -> None:
    for path in plan.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    (plan.folder / TIMES_FILE).unlink()
