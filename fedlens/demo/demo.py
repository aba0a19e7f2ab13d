"""The demo: a whole federation from photos to a report."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from rich.console import Console

from fedlens.admin_client import AdminClient
from fedlens.demo.comparison import Comparison, Training, compare
from fedlens.demo.embedding import embed
from fedlens.demo.recipe import DIGITS, Recipe, for_photos
from fedlens.demo.report import write_report
from fedlens.demo.results import TaskFacts
from fedlens.demo.run_folder import run_folder
from fedlens.demo.scale import MOST_CLIENTS, Scale, at_most, count, only, side_for
from fedlens.demo.sections import sections
from fedlens.demo.server_process import ServerProcess
from fedlens.digits import write_digits
from fedlens.errors import FedlensError
from fedlens.model_file import fetch_model
from fedlens.publishing import sign_bundle
from fedlens.reports.page import versions_of
from fedlens.reports.task_report import unfinished
from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.fleet.config import FleetConfig, default_workers
from fedlens_edge_client.emulation.fleet.display import say
from fedlens_edge_client.emulation.fleet.progress import FleetProgress
from fedlens_edge_client.emulation.fleet.running import run_fleet
from fedlens_edge_client.emulation.fleet.session import say_left_out, say_oddities
from fedlens_edge_client.emulation.partitions import PhotoPool
from fedlens_edge_client.engines.choice import EngineName, make_engine
from fedlens_edge_client.storage.folder_album import UNREADABLE
from fedlens_edge_client.storage.model_file import read_model
from fedlens_export.signing import Terms
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2
from fedlens_server.init import PUBLISHER_KEY

MODEL_FILE = "model.safetensors"
TASK = "demo"
MOST_PHOTOS = 3000
# A demo has nothing to hide; with a fixed key every demo has the same clients.
FLEET_KEY = sha256(b"fedlens/demo/fleet-key").digest()


class DemoFailed(FedlensError):
    """The task did not finish; the text has the reason."""


@dataclass(frozen=True)
class DemoResult:
    """A finished demo.

    Attributes:
        model: File of the shared model, for `fedlens predict`.
        bundle: Folder of the model's bundle.
    """

    facts: TaskFacts
    comparison: Comparison
    report: Path
    model: Path
    bundle: Path


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Settings of a demo.

    Attributes:
        photos: Folder or table of photos; None: scikit-learn's digits.
        out: Folder for the report and all other files.
        clients: Maximum, reduced for few photos; None: 20, or one for each owner of photos.
        rounds: None: the number that the model needs.
        side: Side of the backbone's input, in pixels; None: chosen by the photos' size.
        engine: Engine of all clients.
        most_photos: Maximum of the user's own photos to use.
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
    """Process ids of a demo's server and fleet."""

    server: int
    workers: tuple[int, ...]


def run_demo(
    config: DemoConfig, console: Console, on_running: Callable[[Running], None] = lambda running: None
) -> DemoResult:
    """Run a demo.

    Raises:
        FedlensError: The task, the server or the backbone failed, or the folder is in use.
        EdgeClientError: A process of the fleet died, or the photos cannot serve the demo.
        ExportError: The model cannot be exported; a package may be missing.
    """
    with run_folder(config.out) as run:
        pool = _photos(config, run, console)
        recipe = DIGITS if config.photos is None else for_photos(config.side or side_for(pool))
        _scale(config, pool)  # refuses unusable photos before anything that takes time
        bundle = _export(run / "bundle", pool, recipe, config, console)
        if recipe.head:
            pool = _embedded(bundle, pool, config, console)
        scale = _scale(config, pool)
        _say_scale(console, pool, scale, config)
        rounds = config.rounds or recipe.rounds
        model = config.out / MODEL_FILE
        with ServerProcess.fresh(run / "server", publisher=True) as server:
            say(console, f"the server answers at {server.url}")
            sign_bundle(bundle, server.folder / PUBLISHER_KEY, Terms(any_app=True))
            fleet = _fleet(config, scale, pool, server, run)
            admin = AdminClient(server.profile)
            admin.create_task(TASK, [bundle], recipe.settings(scale, rounds, config.seed))
            _run_fleet(fleet, server, console, on_running)
            response = admin.show(TASK)
            if response.task.state != admin_pb2.TASK_STATE_FINISHED:
                raise DemoFailed(unfinished(response))
            fetch_model(admin, TASK, model)
        facts = TaskFacts.of(response, {fleet.client_id(index): fleet.name(index) for index in range(fleet.clients)})
        comparison = _compared(fleet, bundle, model, recipe.alone(rounds, scale), recipe.pooled(rounds), console)
        ways, details = sections(comparison, facts)
        report = config.out / "report.html"
        write_report(
            report,
            facts,
            photos=f"the photos in {config.photos.name or config.photos}" if config.photos else "scikit-learn's digits",
            setup=recipe.setup(facts, scale, bundle, fleet),
            versions=versions_of("torch", "numpy", "aiohttp", "plotly"),
            made_at=datetime.now(UTC),
            ways=ways,
            details=details,
        )
    return DemoResult(facts, comparison, report, model, bundle.folder)


def _photos(config: DemoConfig, run: Path, console: Console) -> PhotoPool:
    if config.photos is None:
        return PhotoPool.open(write_digits(run / "photos"))
    whole = PhotoPool.open(config.photos)
    say_oddities(whole, console)
    pool = at_most(whole, config.most_photos)
    if pool is not whole:
        say(console, f"{count(pool):,} of {count(whole):,} photos, to save time; --most-photos takes more")
    return pool


def _scale(config: DemoConfig, pool: PhotoPool) -> Scale:
    if config.photos is None:
        return Scale.of_cameras(pool, config.clients or MOST_CLIENTS, config.seed)
    scale = Scale.of_owners(pool, config.clients, config.seed)
    scale.partition.album(pool, 0)  # raises if the photos cannot be divided among all clients
    return scale


def _export(folder: Path, pool: PhotoPool, recipe: Recipe, config: DemoConfig, console: Console) -> Bundle:
    say(console, f"exporting {recipe.model}")
    # Late, because torch takes seconds to import; unusable photos are refused before.
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
    """The readable photos of a pool, once all features are computed."""
    entries = (*pool.entries(is_test=False), *pool.entries(is_test=True))
    started = time.monotonic()
    readable, before = embed(
        bundle, config.engine, entries, _features(config), config.workers or default_workers(len(entries)), console
    )
    known = f", {before:,} of them by an earlier demo" if before else ""
    say(console, f"{len(readable):,} photos read in {time.monotonic() - started:.1f} s{known}")
    if bad := tuple(f"{photo.label}/{photo.path.name}" for photo in entries if photo.digest not in readable):
        say_left_out(UNREADABLE, bad, console)
    return only(pool, lambda photo: photo.digest in readable)


def _features(config: DemoConfig) -> Path:
    """The folder of photos' features, which the next demo uses again."""
    return config.out / "features"


def _say_scale(console: Console, pool: PhotoPool, scale: Scale, config: DemoConfig) -> None:
    train, test = (sum(map(len, side)) for side in (pool.train, pool.test))
    photos = f"{train:,} photos to train on and {test:,} for tests, of {len(pool.class_names)} classes"
    say(console, f"{photos}: {scale.clients} clients, {scale.album}")
    if config.clients and scale.clients < config.clients:
        say(console, f"{scale.clients} clients instead of {config.clients}: there are few photos")


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
        # The report has the bytes that as many phones would have downloaded.
        shares_downloads=False,
        photo_features=_features(config) if config.photos else None,
    )


def _compared(
    fleet: FleetConfig, bundle: Bundle, model: Path, alone: Training | None, pooled: Training | None, console: Console
) -> Comparison:
    engine = make_engine(fleet.engines[0], bundle)
    with console.status("training each client alone, and one model on all photos") if alone else nullcontext():
        return compare(fleet, engine, read_model(model, bundle).weights, alone=alone, pooled=pooled)


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
