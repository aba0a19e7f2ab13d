"""The whole demo, from photos to a report; every part is the product's own."""

import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from fedlens.admin_client import AdminClient
from fedlens.demo.comparison import Comparison, Training, compare
from fedlens.demo.digits import write_digits
from fedlens.demo.embedding import embed
from fedlens.demo.front import sections
from fedlens.demo.recipe import DIGITS, Recipe, for_photos
from fedlens.demo.report import write_report
from fedlens.demo.results import TaskFacts
from fedlens.demo.scale import MOST_CLIENTS, Scale, at_most, count, only, side_for
from fedlens.demo.server_process import PartDied, ServerProcess
from fedlens.demo.workplace import workplace
from fedlens.model_file import fetch_model
from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig, default_workers
from fedlens_edge_client.emulation.fleet.progress import FleetProgress
from fedlens_edge_client.emulation.fleet.running import run_fleet
from fedlens_edge_client.emulation.fleet.session import tell_left_out, tell_oddities
from fedlens_edge_client.emulation.partitions import PhotoPool
from fedlens_edge_client.engines.choice import EngineName, make_engine
from fedlens_edge_client.storage.folder_album import UNREADABLE
from fedlens_edge_client.storage.model_file import read_model
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2

MODEL_FILE = "model.safetensors"
TASK = "demo"
MOST_PHOTOS = 3000
# A demo has nothing to hide, and with a fixed key two of them have the same clients.
FLEET_KEY = sha256(b"fedlens/demo/fleet-key").digest()


class DemoFailed(Exception):
    """The demo did not come to its end; the text says why."""


@dataclass(frozen=True)
class Shown:
    """A demo that came to its end.

    Attributes:
        model: File of the shared model, for `fedlens predict`.
        bundle: Folder of the bundle that it belongs to.
    """

    facts: TaskFacts
    comparison: Comparison
    report: Path
    model: Path
    bundle: Path


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What to show.

    Attributes:
        photos: Folder of photos, or a table of them; None: scikit-learn's digits.
        out: Folder for the report and the parts' files.
        clients: At most so many, fewer where there are few photos; None: 20, or each person where photos have owners.
        rounds: None: as many as the model needs.
        side: Of the photos that the backbone takes, in pixels; None: by their size.
        engine: What runs programs.
        most_photos: Beyond this, photos of one's own are left out.
        workers: Processes of the fleet; None: one per core.
    """

    photos: Path | None
    out: Path
    clients: int | None = None
    rounds: int | None = None
    seed: int
    side: int | None = None
    engine: EngineName = EngineName.TORCH
    most_photos: int = MOST_PHOTOS
    workers: int | None = None


@dataclass(frozen=True)
class Running:
    """Process ids of a demo's parts, for whoever wants to watch or disturb it."""

    server: int
    workers: tuple[int, ...]


def run_demo(
    config: DemoConfig, console: Console, on_running: Callable[[Running], None] = lambda running: None
) -> Shown:
    """Run it.

    Raises:
        DemoFailed: The task did not finish.
        PartDied: The server ended before its time.
        WorkerDied: A process of the fleet did.
        EmbeddingFailed: The backbone could not be run.
        PoolUnusable, Unservable: The photos do not do.
        ExportError: The model cannot be exported; a package may be missing.
        WorkplaceTaken: The folder cannot be used.
    """
    with workplace(config.out) as run:
        pool = _photos(config, run, console)
        recipe = DIGITS if config.photos is None else for_photos(config.side or side_for(pool))
        _scale(config, pool)  # told before anything that takes time
        bundle = _export(run / "bundle", pool, recipe, config, console)
        if recipe.head:
            pool = _embedded(bundle, pool, config, console)
        scale = _scale(config, pool)
        _say_scale(console, pool, scale, config)
        rounds = config.rounds or recipe.rounds
        model = config.out / MODEL_FILE
        with ServerProcess.fresh(run / "server") as server:
            console.print(f"the server answers at {server.url}", highlight=False, soft_wrap=True)
            fleet = _fleet(config, scale, pool, server, run)
            settings = recipe.settings(scale, rounds, config.seed)
            answer = _federation(fleet, bundle, settings, server, model, console, on_running)
        facts = TaskFacts.of(answer, {fleet.client_id(index): fleet.name(index) for index in range(fleet.clients)})
        comparison = _compared(fleet, bundle, model, recipe.alone(rounds, scale), recipe.pooled(rounds), console)
        ways, details = sections(comparison, facts)
        report = config.out / "report.html"
        write_report(
            report,
            facts,
            photos=_called(config),
            setup=recipe.told(facts, scale, bundle, fleet),
            versions=_versions(),
            made_at=datetime.now(UTC),
            ways=ways,
            details=details,
        )
    return Shown(facts, comparison, report, model, bundle.folder)


def _photos(config: DemoConfig, run: Path, console: Console) -> PhotoPool:
    if config.photos is None:
        return PhotoPool.open(write_digits(run / "photos"))
    whole = PhotoPool.open(config.photos)
    tell_oddities(whole, console)
    pool = at_most(whole, config.most_photos)
    if pool is not whole:
        console.print(
            f"{count(pool):,} of {count(whole):,} photos, to be done soon; --most-photos takes more",
            highlight=False,
            soft_wrap=True,
        )
    return pool


def _scale(config: DemoConfig, pool: PhotoPool) -> Scale:
    if config.photos is None:
        return Scale.of_cameras(pool, config.clients or MOST_CLIENTS, config.seed)
    scale = Scale.of_owners(pool, config.clients, config.seed)
    scale.partition.album(pool, 0)  # divides the photos among all clients, or says why it cannot
    return scale


def _export(folder: Path, pool: PhotoPool, recipe: Recipe, config: DemoConfig, console: Console) -> Bundle:
    console.print(f"exporting {recipe.model}", highlight=False, soft_wrap=True)
    # Imports torch, which takes seconds: photos that do not do are told of before.
    from fedlens_export.exporting import ExportSpec, export_bundle

    spec = ExportSpec(
        model=recipe.model,
        class_names=pool.class_names,
        input_size=recipe.side,
        head=recipe.head,
        batch=recipe.batch,
        seed=config.seed,
        pte=config.engine is EngineName.EXECUTORCH,
    )
    return export_bundle(folder, spec)


def _embedded(bundle: Bundle, pool: PhotoPool, config: DemoConfig, console: Console) -> PhotoPool:
    """The photos that can be read, once the features of all are there."""
    entries = (*pool.entries(is_test=False), *pool.entries(is_test=True))
    started = time.monotonic()
    readable, before = embed(
        bundle, config.engine, entries, _features(config), config.workers or default_workers(len(entries)), console
    )
    known = f", {before:,} of them by an earlier demo" if before else ""
    console.print(
        f"{len(readable):,} photos read in {time.monotonic() - started:.1f} s{known}", highlight=False, soft_wrap=True
    )
    if bad := tuple(f"{photo.label}/{photo.path.name}" for photo in entries if photo.digest not in readable):
        tell_left_out(UNREADABLE, bad, console)
    return only(pool, lambda photo: photo.digest in readable)


def _features(config: DemoConfig) -> Path:
    """What was computed of photos stays for the next demo; all else is made anew."""
    return config.out / "features"


def _say_scale(console: Console, pool: PhotoPool, scale: Scale, config: DemoConfig) -> None:
    train, test = (sum(map(len, side)) for side in (pool.train, pool.test))
    console.print(
        f"{train:,} photos to train on and {test:,} for tests, of {len(pool.class_names)} classes: {scale.clients} "
        f"clients, {scale.album}",
        highlight=False,
        soft_wrap=True,
    )
    if config.clients and scale.clients < config.clients:
        console.print(
            f"{scale.clients} clients instead of {config.clients}: there are few photos",
            highlight=False,
            soft_wrap=True,
        )


def _fleet(config: DemoConfig, scale: Scale, pool: PhotoPool, server: ServerProcess, run: Path) -> FleetConfig:
    return FleetConfig(
        server=server.url,
        clients=scale.clients,
        pool=pool,
        partition=scale.partition,
        plan=FaultPlan(),
        key=FLEET_KEY,
        state=run / "fleet",
        workers=config.workers or default_workers(scale.clients),
        token=server.token("trainer"),
        evaluator_token=server.token("evaluator"),
        ca=server.ca,
        engines=(config.engine,),
        # The report tells what as many phones would have downloaded.
        shares_downloads=False,
        photo_features=_features(config) if config.photos else None,
    )


def _compared(
    fleet: FleetConfig, bundle: Bundle, model: Path, alone: Training | None, pooled: Training | None, console: Console
) -> Comparison:
    engine = make_engine(fleet.engines[0], bundle)
    with console.status("training each client alone, and one model on all photos") if alone else nullcontext():
        return compare(fleet, engine, read_model(model, bundle).weights, alone=alone, pooled=pooled)


def _federation(
    fleet: FleetConfig,
    bundle: Bundle,
    settings: str,
    server: ServerProcess,
    model: Path,
    console: Console,
    on_running: Callable[[Running], None],
) -> admin_pb2.ShowTaskResponse:
    """The task as the server knows it at its end, with the shared model in the file `model`."""
    admin = AdminClient(server.profile)
    admin.create_task(TASK, [bundle], settings)
    _run_fleet(fleet, server, console, on_running)
    answer = admin.show(TASK)
    if answer.task.state != admin_pb2.TASK_STATE_FINISHED:
        raise DemoFailed(_why_unfinished(answer))
    fetch_model(admin, TASK, model)
    return answer


def _run_fleet(
    fleet: FleetConfig, server: ServerProcess, console: Console, on_running: Callable[[Running], None]
) -> None:
    def started(pids: list[int]) -> None:
        on_running(Running(server=server.pid, workers=tuple(pids)))

    with FleetProgress(console, fleet.workers) as progress:

        def check() -> bool:
            server.check()
            progress.look()
            return False

        status = run_fleet(fleet, progress.show, check, started)
    if status.failures:
        index, failure = min(status.failures.items())
        raise DemoFailed(f"{len(status.failures)} clients failed; {fleet.name(index)}: {failure}")


def _why_unfinished(answer: admin_pb2.ShowTaskResponse) -> str:
    task = answer.task
    state = admin_pb2.TaskState.Name(task.state).removeprefix("TASK_STATE_").lower()
    reasons = [m.reason for r in answer.rounds for m in r.members if m.reason]
    detail = f"; a client says: {reasons[0]}" if reasons else ""
    return f"the task is {state} after {task.rounds_committed} of {task.rounds_total} rounds: {task.reason}{detail}"


def _called(config: DemoConfig) -> str:
    return "scikit-learn's digits" if config.photos is None else f"the photos in {config.photos.name or config.photos}"


def _versions() -> dict[str, str]:
    names = {"FedLens": "fedlens", "torch": "torch", "numpy": "numpy", "aiohttp": "aiohttp", "plotly": "plotly"}
    return {
        **{name: version(package) for name, package in names.items()},
        "Python": platform.python_version(),
        "System": f"{platform.system()} on {platform.machine()}",
    }


__all__ = ["DemoConfig", "DemoFailed", "PartDied", "Running", "run_demo"]
