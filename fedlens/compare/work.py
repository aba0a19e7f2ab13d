"""The work of a study's run, in a process of its own, here or elsewhere."""

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedlens.compare import results, run_state
from fedlens.compare.plan import FEATURES, RunPlan
from fedlens.compare.report.summary import run_columns
from fedlens.compare.run import running
from fedlens.compare.run.side_by_side import Helpers
from fedlens.jobs import Report, throttled
from fedlens.reports.made import made

TIMES_FILE, FINGERPRINT_FILE, MODEL_FILE = "times.jsonl", "fingerprint", "model.blob"


def _seconds(times: Path) -> dict[int, float]:
    """Seconds by round; those of a resumed round count from its last start. A line may have been cut short."""
    found: dict[int, float] = {}
    for line in times.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            number, seconds = json.loads(line)
            found[number] = seconds
    return found


def prepare(plan: RunPlan) -> None:
    """Make the run's folder, or leave what is in it if that is of this run; files of a run with other settings go."""
    run_state.redo(plan.folder)
    mark = plan.folder / FINGERPRINT_FILE
    if not mark.is_file() or mark.read_text(encoding="utf-8") != plan.fingerprint:
        shutil.rmtree(plan.folder, ignore_errors=True)
        plan.folder.mkdir(parents=True)
        mark.write_text(plan.fingerprint, encoding="utf-8")


def carry_out(
    study_folder: Path,
    plan: RunPlan,
    device: str,
    report: Report,
    on_commit: Callable[[], None] = lambda: None,
    helpers: Helpers | None = None,
) -> None:
    """Carry out a run or resume it; leaves its result, model and fingerprint in the run's folder.

    Args:
        study_folder: Folder of the bundles, and of the features that runs share.
        plan: The run.
        device: Torch's name of the device that runs programs.
        report: Is sent `RunProgress`.
        on_commit: Called after each committed round, while nobody writes to the run's folder.
        helpers: As in `running.run`.

    Raises:
        RunFailed: The task failed; carried out again, the run begins anew.
        EdgeClientError, ProtoError, ServerError: A client or the round engine cannot go on; carried out again, the run
            goes on from its last round, as after a kill.
    """
    prepare(plan)
    committed = throttled(report)
    with (plan.folder / TIMES_FILE).open("a+", encoding="utf-8") as times:
        times.seek(0)
        if (before := times.read()) and not before.endswith("\n"):
            times.write("\n")  # a full disk or a loss of power may have cut the last line short

        def ended(number: int, seconds: float) -> None:
            times.write(json.dumps([number, seconds]) + "\n")
            times.flush()

        def kept(progress: running.RunProgress) -> None:
            on_commit()
            committed(progress, progress.rounds == progress.rounds_total)

        try:
            result = asyncio.run(
                running.run(
                    plan.fleet,
                    plan.settings,
                    tuple(study_folder / bundle.folder for bundle in plan.bundles),
                    features=study_folder / FEATURES,
                    device=device,
                    helpers=helpers,
                    on_commit=kept,
                    on_round=ended,
                )
            )
        except running.RunFailed:
            # The next command begins it anew: the cause, such as a fault of a plug-in, may be mended by then.
            (plan.folder / FINGERPRINT_FILE).unlink()
            raise
    if result.model is not None:
        (plan.folder / MODEL_FILE).write_bytes(result.model)
    values = results.run_values(plan, result, _seconds(plan.folder / TIMES_FILE), made())
    results.write_json(plan.result, values)
    rounds, columns = result.shown.task.rounds_total, run_columns(values)
    # The last model is evaluated after its commit; the table shows that evaluation.
    accuracies = columns.get("global_accuracy"), columns.get("personal_accuracy")
    report(running.RunProgress(rounds, rounds, *accuracies))
    for path in plan.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    (plan.folder / TIMES_FILE).unlink()
