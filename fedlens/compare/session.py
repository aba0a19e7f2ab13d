"""A study run by a person: photos, bundles, runs, tables; progress meanwhile, Ctrl-C, an exit status."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fedlens.compare import refusals, results
from fedlens.compare.photos import study_photos
from fedlens.compare.plan import RunPlan, StudyPlan, plan
from fedlens.compare.progress import StudyProgress
from fedlens.compare.report import tables
from fedlens.compare.report.report import write_report
from fedlens.compare.report.summary import MethodSummary, summarise
from fedlens.compare.study import Study, StudyError, summary
from fedlens.compare.work import Exporting, Pretraining, Running
from fedlens.jobs import Ended, Job, run_jobs
from fedlens_edge_client.emulation.fleet.session import Interrupts
from fedlens_edge_client.emulation.partitions import PhotoPool

EXIT_FAILED = 1
RESULTS_FILE, REPORT_FILE, TABLE_FILE = "results.json", "report.html", "table.md"


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """How a study is carried out.

    Attributes:
        out: Folder for everything; the same one goes on with what is there.
        cache: Folder for data sets that are written once.
        workers: Processes.
        device: Where programs run, as torch names it.
    """

    out: Path
    cache: Path
    workers: int
    device: str = "cpu"


def run_study(study: Study, config: SessionConfig, console: Console) -> int:
    """Carry out what is missing of a study, and write what came out.

    Returns:
        The exit status: 0, 1 when a run failed, 130 or 143 when it was stopped.

    Raises:
        StudyError: The folder is in use, or a setting is not acceptable: to the study, or to the round engine with
            the bundles that the study exports.
        SourceUnavailable, EdgeClientError: There are no photos that would do.
    """
    _check_device(config.device)
    with _only_here(config.out):
        photos = study_photos(study.photos, config.cache, config.out)
        planned = plan(study, photos, config.out)
        _check_albums(planned)
        done = sum(run.is_done for run in planned.runs)
        _say(console, study, photos.pool, planned, done)
        with Interrupts() as interrupts:
            failures = _work(planned, config, console, done, interrupts)
        summaries = _write(study, planned, config, failures)
        if summaries:
            console.print(tables.rich_table(study, summaries, console.width))
            console.print(f"the report is {config.out / REPORT_FILE}", highlight=False, soft_wrap=True)
        for name, failure in failures.items():
            console.print(Text(f"{name} failed: {failure}", style="red"), soft_wrap=True)
        if interrupts.received is not None:
            console.print("stopped; the same command goes on from here", soft_wrap=True)
            return interrupts.exit_status
    return EXIT_FAILED if failures else 0


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    # Late, because torch takes seconds to import, which this process does not need otherwise.
    from fedlens_edge_client.engines import NoSuchDevice
    from fedlens_edge_client.engines.torch import device_of

    try:
        device_of(device)
    except NoSuchDevice as error:
        raise StudyError(f"--device: found {device!r}: {error}") from error


@contextmanager
def _only_here(out: Path) -> Iterator[None]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise StudyError(f"--out: {out} cannot be used: {error.strerror}; choose another folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StudyError(f"--out: another study runs in {out}; wait for it, or choose another folder") from error
        yield


def _check_albums(planned: StudyPlan) -> None:
    """Find early what a pool cannot serve; a partition divides it for all clients at once."""
    for run in {(run.seed, run.fleet.clients): run for run in planned.runs}.values():
        run.fleet.album(0)


def _say(console: Console, study: Study, pool: PhotoPool, planned: StudyPlan, done: int) -> None:
    before = f", {done} of them done before" if done else ""
    console.print(
        Text(
            f"{study.name}: {len(planned.runs)} runs ({len(study.methods)} methods, {len(study.seeds)} seeds){before}; "
            f"{study.clients} clients, {len(pool.class_names)} classes, {planned.runs[0].fleet.partition.summary}"
        ),
        soft_wrap=True,
    )
    for note in pool.notes:
        console.print(Text(note), soft_wrap=True)


def _work(
    planned: StudyPlan, config: SessionConfig, console: Console, done: int, interrupts: Interrupts
) -> dict[str, str]:
    """Do all jobs that are not done; the failures of runs, by name."""
    missing = [run for run in planned.runs if not run.is_done]
    needed = {bundle for run in missing for bundle in run.bundles}
    bundles = [bundle for bundle in planned.bundles if bundle in needed]
    backbones = [b for b in planned.backbones if any(bundle.model == b.model for bundle in bundles)]
    failures: dict[str, str] = {}
    with StudyProgress(console, len(planned.runs), done, config.workers) as progress:

        def stage(jobs: Sequence[Job], *, is_run: bool = False) -> None:
            for message in run_jobs(jobs, config.workers, lambda: interrupts.received is not None):
                progress.show(message, is_run=is_run)
                if isinstance(message, Ended) and message.failure is not None:
                    failures[message.job] = message.failure

        stage([Pretraining(config.out, spec) for spec in backbones])
        if not failures:
            stage([Exporting(config.out, spec) for spec in bundles])
        # Whoever has to correct a study wants to know it now, and not after hours of other methods' runs.
        if not failures and interrupts.received is None:
            refusals.check(config.out, missing)
            progress.begin_runs()
            stage([Running(config.out, run, config.device) for run in missing], is_run=True)
    return failures


def _write(study: Study, planned: StudyPlan, config: SessionConfig, failures: dict[str, str]) -> list[MethodSummary]:
    """Write what is there: raw results, table, report; nothing where no run has ended."""
    runs = [_read(run) for run in planned.runs if run.is_done]
    if not runs:
        return []
    results.write_json(config.out / RESULTS_FILE, {"study": summary(study), "failures": failures, "runs": runs})
    by_label = {label: [run for run in runs if run["label"] == label] for label in study.methods}
    summaries = [summarise(label, found) for label, found in by_label.items() if found]
    (config.out / TABLE_FILE).write_text(tables.markdown(study, summaries), encoding="utf-8")
    write_report(config.out / REPORT_FILE, study, planned, summaries)
    return summaries


def _read(run: RunPlan) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(run.result.read_text(encoding="utf-8"))
    return values
