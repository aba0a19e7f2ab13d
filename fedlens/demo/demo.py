"""The whole demo, from photos to a report; every part is the product's own."""

import json
import platform
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedlens.admin_client import AdminClient
from fedlens.demo.digits import write_digits
from fedlens.demo.report import readable_bytes, write_report
from fedlens.demo.results import TaskFacts
from fedlens.demo.scale import Scale
from fedlens.demo.server_process import PartDied, ServerProcess
from fedlens.demo.workplace import workplace
from fedlens_edge_client.faults import FaultPlan
from fedlens_edge_client.fleet.config import FleetConfig, default_workers
from fedlens_edge_client.fleet.messages import client_name
from fedlens_edge_client.fleet.progress import FleetProgress
from fedlens_edge_client.fleet.running import run_fleet
from fedlens_edge_client.regimes import PhotoPool, Regime, RegimeName
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2

TASK = "demo"
MODEL = "lenet5"
INPUT_SIZE = 32
BATCH = 16
LEARNING_RATE = 0.01
MOMENTUM = 0.9
DEADLINE_S = 120.0
# A demo has nothing to hide, and with a fixed key two of them have the same clients.
FLEET_KEY = sha256(b"fedlens/demo/fleet-key").digest()


class DemoFailed(Exception):
    """The demo did not come to its end; the text says why."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What to show.

    Attributes:
        photos: Folder of photos; None: scikit-learn's digits.
        out: Folder for the report and the parts' files.
        clients: At most so many; fewer where there are few photos.
        workers: Processes of the fleet; None: one per core.
    """

    photos: Path | None
    out: Path
    clients: int
    rounds: int
    seed: int
    workers: int | None = None


@dataclass(frozen=True)
class Running:
    """Process ids of a demo's parts, for whoever wants to watch or disturb it."""

    server: int
    workers: tuple[int, ...]


def run_demo(
    config: DemoConfig, console: Console, on_running: Callable[[Running], None] = lambda running: None
) -> tuple[TaskFacts, Path]:
    """Run it; gives the results and the report's path.

    Raises:
        DemoFailed: The task did not finish.
        PartDied: The server ended before its time.
        WorkerDied: A process of the fleet did.
        PoolUnusable: The photos do not do.
        WorkplaceTaken: The folder cannot be used.
    """
    with workplace(config.out) as run, ExitStack() as stack:
        pool = _photos(config, run, console)
        scale = Scale.of(pool, config.clients)
        _say_scale(console, pool, scale, config)
        bundle = _export(run / "bundle", pool, config, console)
        server = stack.enter_context(ServerProcess.fresh(run / "server"))
        console.print(f"the server answers at {server.url}", highlight=False, soft_wrap=True)
        admin = AdminClient(server.profile)
        admin.create_task(TASK, [bundle], _settings(scale, config))
        fleet = _fleet(config, scale, pool, server, run)
        _run_fleet(fleet, server, console, on_running)
        answer = admin.show(TASK)
    if answer.task.state != admin_pb2.TASK_STATE_FINISHED:
        raise DemoFailed(_why_unfinished(answer))
    facts = TaskFacts.of(answer, {fleet.client_id(index): client_name(index) for index in range(fleet.clients)})
    report = config.out / "report.html"
    write_report(
        report,
        facts,
        photos=_called(config),
        setup=_setup(facts, scale, bundle, pool, fleet),
        versions=_versions(),
        made_at=datetime.now(UTC),
    )
    return facts, report


def _photos(config: DemoConfig, run: Path, console: Console) -> PhotoPool:
    if config.photos is None:
        pool = PhotoPool.open(write_digits(run / "photos"))
    else:
        pool = PhotoPool.open(config.photos)
    for reason, files in pool.skipped.items():
        console.print(f"left out {len(files)} {escape(reason)}", highlight=False, soft_wrap=True)
    return pool


def _export(folder: Path, pool: PhotoPool, config: DemoConfig, console: Console) -> Bundle:
    console.print(f"exporting {MODEL}", highlight=False, soft_wrap=True)
    # Imports torch, which takes seconds: photos that do not do are told of before.
    from fedlens_export.exporting import ExportSpec, export_bundle

    spec = ExportSpec(model=MODEL, class_names=pool.class_names, input_size=INPUT_SIZE, batch=BATCH, seed=config.seed)
    return export_bundle(folder, spec)


def _say_scale(console: Console, pool: PhotoPool, scale: Scale, config: DemoConfig) -> None:
    train, test = (sum(map(len, side)) for side in (pool.train, pool.test))
    console.print(
        f"{train:,} photos to train on and {test:,} for tests, of {len(pool.class_names)} classes: {scale.clients} "
        f"clients, in every round 1 to {2 * scale.per_class} photos of each class",
        highlight=False,
        soft_wrap=True,
    )
    if scale.clients < config.clients:
        console.print(
            f"{scale.clients} clients instead of {config.clients}: the smallest class has {scale.clients} train photos"
            if scale.clients > 2
            else f"2 clients instead of {config.clients}: there are few photos",
            highlight=False,
            soft_wrap=True,
        )


def _settings(scale: Scale, config: DemoConfig) -> str:
    return json.dumps(
        {
            "method": "fedavg",
            "rounds": config.rounds,
            "population": scale.clients,
            "epochs": scale.epochs,
            "hyper": {"lr_extractor": LEARNING_RATE, "lr_classifier": LEARNING_RATE, "momentum": MOMENTUM},
            "deadline_s": DEADLINE_S,
            "min_reports": (scale.clients + 1) // 2,
            "evaluate_every": 1,
            "seed": sha256(b"fedlens/demo/task" + str(config.seed).encode()).hexdigest(),
        }
    )


def _fleet(config: DemoConfig, scale: Scale, pool: PhotoPool, server: ServerProcess, run: Path) -> FleetConfig:
    return FleetConfig(
        server=server.url,
        clients=scale.clients,
        pool=pool,
        regime=Regime(
            name=RegimeName.CAMERA_NONIID,
            seed=config.seed,
            per_class=scale.per_class,
            test_per_class=scale.test_per_class,
        ),
        plan=FaultPlan(),
        key=FLEET_KEY,
        state=run / "fleet",
        workers=config.workers or default_workers(scale.clients),
        token=server.token("trainer"),
        evaluator_token=server.token("evaluator"),
        ca=server.ca,
        # The report tells what twenty phones would have downloaded.
        shares_downloads=False,
    )


def _run_fleet(
    fleet: FleetConfig, server: ServerProcess, console: Console, on_running: Callable[[Running], None]
) -> None:
    def check() -> bool:
        server.check()
        return False

    def started(pids: list[int]) -> None:
        on_running(Running(server=server.pid, workers=tuple(pids)))

    with FleetProgress(console, fleet.workers) as progress:
        status = run_fleet(fleet, progress.show, check, started)
    if status.failures:
        index, failure = min(status.failures.items())
        raise DemoFailed(f"{len(status.failures)} clients failed; {client_name(index)}: {failure}")


def _why_unfinished(answer: admin_pb2.ShowTaskResponse) -> str:
    task = answer.task
    state = admin_pb2.TaskState.Name(task.state).removeprefix("TASK_STATE_").lower()
    reasons = [m.reason for r in answer.rounds for m in r.members if m.reason]
    detail = f"; a client says: {reasons[0]}" if reasons else ""
    return f"the task is {state} after {task.rounds_committed} of {task.rounds_total} rounds: {task.reason}{detail}"


def _called(config: DemoConfig) -> str:
    return "scikit-learn's digits" if config.photos is None else f"the photos in {config.photos.name or config.photos}"


def _setup(facts: TaskFacts, scale: Scale, bundle: Bundle, pool: PhotoPool, fleet: FleetConfig) -> dict[str, str]:
    manifest = bundle.manifest
    weights = sum(bundle.initial()[tensor.name].size for tensor in manifest.tensors)
    settings = facts.settings
    return {
        "Method": "FedAvg: the mean of all models, weighted by photos",
        "Clients": f"{scale.clients}, all of them in every round, in {fleet.workers} processes",
        "Rounds": str(settings.get("rounds", len(facts.rounds))),
        "Photos": f"{sum(map(len, pool.train)):,} to train on, {sum(map(len, pool.test)):,} for tests",
        "Classes": ", ".join(pool.class_names),
        "A client's photos": f"fresh in every round, 1 to {2 * scale.per_class} of each class; "
        f"{scale.test_per_class} of each class for its own tests",
        "Model": f"{manifest.model}, {weights:,} weights ({readable_bytes(bundle.initial().size)}), "
        f"photos of {manifest.preprocessing.width} x {manifest.preprocessing.height} pixels",
        "Local training": f"{settings.get('epochs')} passes over the round's photos, batches of {manifest.batch}, "
        f"{manifest.optimiser.upper()}, learning rate {LEARNING_RATE}, momentum {MOMENTUM}",
        "Seed": str(fleet.regime.seed),
    }


def _versions() -> dict[str, str]:
    names = {"FedLens": "fedlens", "torch": "torch", "numpy": "numpy", "aiohttp": "aiohttp", "plotly": "plotly"}
    return {
        **{name: version(package) for name, package in names.items()},
        "Python": platform.python_version(),
        "System": f"{platform.system()} on {platform.machine()}",
    }


__all__ = ["DemoConfig", "DemoFailed", "PartDied", "Running", "run_demo"]
