"""A study run from a terminal: photos, bundles, runs and tables, with progress, Ctrl-C and an exit status."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedlens.compare import refusals, results, run_state
from fedlens.compare.bundles import export, pretrain
from fedlens.compare.kept import PLANNED_FILE, RESULTS_FILE, STUDY_FILE, Kept
from fedlens.compare.on_ray.cluster import RayConfig, connected
from fedlens.compare.on_ray.runs import run_on_ray
from fedlens.compare.photos import study_photos
from fedlens.compare.plan import RunPlan, StudyPlan, plan
from fedlens.compare.progress import StudyProgress
from fedlens.compare.report import exports, tables
from fedlens.compare.report.report import write_report
from fedlens.compare.report.summary import MethodSummary
from fedlens.compare.study import Study, StudyError
from fedlens.compare.work import carry_out
from fedlens.jobs import Job, JobEnded, JobProgress, run_jobs
from fedlens.locked_folder import locked
from fedlens.reports import tracking
from fedlens_edge_client.emulation.fleet.display import say
from fedlens_edge_client.emulation.fleet.session import Interrupts, say_oddities
from fedlens_edge_client.emulation.partitions import PhotoPool

EXIT_FAILED = 1
REPORT_FILE, TABLE_FILE, TENSORBOARD = "report.html", "table.md", "tensorboard"


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """Settings of this machine for a study.

    Attributes:
        out: Folder for all files; with the folder of an earlier command the study resumes.
        cache: Folder for data sets.
        workers: Processes.
        device: Torch's name of the device that runs programs.
        ray: The cluster that carries out the runs; None: processes on this machine.
        tensorboard: Also write TensorBoard's event files.
        mlflow: Also log the runs to MLflow.
    """

    out: Path
    cache: Path
    workers: int
    device: str = "cpu"
    ray: RayConfig | None = None
    tensorboard: bool = False
    mlflow: bool = False


def run_study(study: Study, config: SessionConfig, console: Console) -> int:
    """Carry out a study's missing runs, and write its results.

    Returns:
        The exit status: 0, 1 after a failed run, 130 or 143 after a signal.

    Raises:
        StudyError: The study or, with the exported bundles, the round engine refuses a setting; or the folder cannot be
            written.
        FolderInUse: Another study uses the folder.
        SourceUnavailable, EdgeClientError: The photos cannot be had or used.
        TrackerMissing: TensorBoard or MLflow is asked for and not installed.
        RayUnusable: Runs cannot be carried out on Ray.
    """
    if config.ray is None:
        _check_device(config.device)
    tracking.check_installed(tensorboard=config.tensorboard, mlflow=config.mlflow)
    with locked(config.out, "study"):
        photos = study_photos(study.photos, config.cache, config.out)
        planned = plan(study, photos, config.out)
        # Find early that a pool cannot serve the partition, which divides it for all clients at once.
        for run in {run.fleet.partition: run for run in planned.runs}.values():
            run.fleet.album(0)
        for run in planned.runs:
            run_state.redo(run.folder)
        missing = [run for run in planned.runs if not run.is_done]
        if missing:
            refusals.check_bundles(planned.runs)
        with _written(config.out):
            results.write_json(config.out / STUDY_FILE, _described(study))
            results.write_json(config.out / PLANNED_FILE, [run.fingerprint for run in planned.runs])
        _introduce(console, study, photos.pool, planned, len(planned.runs) - len(missing))
        for run in missing:
            if run.result.is_file():
                changed = "its result is of other settings, photos or another version; it is run anew"
                say(console, f"{run.name}: {changed}", "yellow")
        with ExitStack() as stack:
            ray = None
            if config.ray is not None and missing:
                ray = stack.enter_context(connected(config.ray, config.workers))
            interrupts = stack.enter_context(Interrupts())
            failures = _work(planned, missing, config, console, interrupts, ray)
        with _written(config.out):
            summaries = _write(study, planned, config, failures)
        if summaries:
            console.print(tables.rich_table(study, summaries, console.width))
            say(console, f"the report is {config.out / REPORT_FILE}")
        for name, failure in failures.items():
            say(console, f"{name} failed: {failure}", "red")
        if interrupts.received is not None:
            say(console, "stopped; the same command goes on from here")
            return interrupts.exit_status
    return EXIT_FAILED if failures else 0


@contextmanager
def _written(out: Path) -> Iterator[None]:
    """Tell what cannot be written, such as on a full disk."""
    try:
        yield
    except OSError as error:
        raise StudyError(f"{error.filename or out} cannot be written: {error.strerror}") from error


def _described(study: Study) -> dict[str, Any]:
    return study.model_dump(mode="json", exclude_defaults=True)


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    # Late, because torch takes seconds to import and this process needs it for nothing else.
    from fedlens_edge_client.engines import NoSuchDevice
    from fedlens_edge_client.engines.torch import device_of

    try:
        device_of(device)
    except NoSuchDevice as error:
        raise StudyError(f"--device: found {device!r}: {error}") from error


def _introduce(console: Console, study: Study, pool: PhotoPool, planned: StudyPlan, done: int) -> None:
    before = f", {done} of them done before" if done else ""
    say(
        console,
        f"{study.name}: {len(planned.runs)} runs ({len(study.methods)} methods, {len(study.seeds)} seeds){before}; "
        f"{study.clients} clients, {len(pool.class_names)} classes, {planned.runs[0].fleet.partition.summary}",
    )
    say_oddities(pool, console)


def _work(
    planned: StudyPlan,
    missing: Sequence[RunPlan],
    config: SessionConfig,
    console: Console,
    interrupts: Interrupts,
    ray: Path | None,
) -> dict[str, str]:
    """Do all missing jobs, and the runs on Ray, with its nodes' folder, if it is given; failures by the job's name."""
    needed = {bundle for run in missing for bundle in run.bundles}
    bundles = [bundle for bundle in planned.bundles if bundle in needed]
    backbones = [b for b in planned.backbones if any(bundle.model == b.model for bundle in bundles)]
    failures: dict[str, str] = {}
    with StudyProgress(console, len(planned.runs), len(planned.runs) - len(missing)) as progress:

        def should_stop() -> bool:
            return interrupts.received is not None

        def follow(messages: Iterator[JobProgress | JobEnded], *, is_run: bool = False) -> None:
            for message in messages:
                progress.show(message, is_run=is_run)
                if isinstance(message, JobEnded) and message.failure is not None:
                    failures[message.job] = message.failure

        def stage(jobs: Sequence[Job], *, is_run: bool = False) -> None:
            follow(run_jobs(jobs, config.workers, should_stop), is_run=is_run)

        stage([Job(f"pretraining {spec.model}", partial(pretrain, config.out, spec)) for spec in backbones])
        if not failures:
            stage([Job(f"exporting {spec.name}", partial(export, config.out, spec)) for spec in bundles])
        # Before the first run: a wrong setting should not be found after hours of other methods' runs.
        if not failures and interrupts.received is None:
            refusals.check(config.out, missing)
            progress.begin_runs()
            if config.ray is not None and ray is not None:
                on_ray = run_on_ray(config.out, missing, config.device, ray, config.ray, should_stop)
                follow(on_ray, is_run=True)
            else:
                runs = [Job(run.name, partial(carry_out, config.out, run, config.device)) for run in missing]
                stage(runs, is_run=True)
    return failures


def _write(study: Study, planned: StudyPlan, config: SessionConfig, failures: dict[str, str]) -> list[MethodSummary]:
    """Write raw results, tables, report and what else is asked for, if a run is done."""
    runs = [json.loads(run.result.read_text(encoding="utf-8")) for run in planned.runs if run.is_done]
    if not runs:
        return []
    results.write_json(config.out / RESULTS_FILE, {"study": _described(study), "failures": failures, "runs": runs})
    summaries = Kept(study, runs).summaries
    (config.out / TABLE_FILE).write_text(tables.markdown(study, summaries), encoding="utf-8")
    exports.write_csv_files(config.out, study, runs, summaries)
    write_report(config.out / REPORT_FILE, study, planned, summaries)
    if config.tensorboard:
        tracking.write_tensorboard(config.out / TENSORBOARD, map(exports.tracked, runs))
    if config.mlflow:
        tracking.log_to_mlflow(study.name, map(exports.tracked, runs))
    return summaries
