"""`fedlens fleet`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import MAX_SEED, TOKEN_VARIABLE, EngineChoice, enrolment_token

DEFAULT_CLIENTS = 20


class PartitionChoice(StrEnum):
    """The partitions' names, without importing what carries them out."""

    CAMERA_IID = "camera-iid"
    CAMERA_NONIID = "camera-noniid"
    ALBUM = "album"
    DIRICHLET = "dirichlet"
    CLASSES = "classes"
    TWO_CLASSES = "two-classes"
    POOLED_HALVES = "pooled-halves"
    FEATURE_SKEW = "feature-skew"
    CLIENTS = "clients"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("fleet")(fleet)


def fleet(
    server: Annotated[str, typer.Option(help="Address of the server, such as https://127.0.0.1:8443.")],
    photos: Annotated[
        str,
        typer.Option(
            metavar="DIR|CSV|NAME",
            help="Folder with a sub-folder of photos per class, or with `train` and `test` of such, or with one such "
            "folder per client; a table of files and clients; or a data set: digits, cifar10, cifar100, fashion-mnist.",
        ),
    ],
    clients: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000,
            help="Clients to emulate. Default: 20; with partition clients one for each whose photos there are.",
        ),
    ] = None,
    partition: Annotated[
        PartitionChoice, typer.Option(help="Which photos each client has in which round.")
    ] = PartitionChoice.CAMERA_NONIID,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Of all that is drawn, and of the clients' identities.")
    ] = 1,
    per_class: Annotated[
        int | None,
        typer.Option(min=1, help="n of a camera or album: about so many photos of each class a round. Default: 10."),
    ] = None,
    test_per_class: Annotated[
        int | None,
        typer.Option(
            min=1, help="Test photos of each class and client of a camera or album. Default: a fifth of n, at least 1."
        ),
    ] = None,
    drift: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="How far the class mix of what arrives in an album moves. Default: 0."),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(help="Of dirichlet and pooled-halves: the smaller, the more do clients differ. Default: 0.5."),
    ] = None,
    min_photos: Annotated[
        int | None,
        typer.Option(
            min=1, help="Least photos of a client with dirichlet (default: 10) or pooled-halves (both halves; 40)."
        ),
    ] = None,
    classes_per_client: Annotated[
        int | None, typer.Option(min=1, help="k of the partition classes. Default: 2.")
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(min=0, help="Of feature-skew: client i of n has noise of deviation sigma i/n. Default: 0.1."),
    ] = None,
    test_photos: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Test photos of each client of dirichlet, classes, two-classes or feature-skew. Default: all, divided "
            "as train photos are.",
        ),
    ] = None,
    unseen: Annotated[
        float | None,
        typer.Option(
            help="Of the partition clients: share of the people or devices whose photos no client has, but the "
            "evaluator. Default: 0.",
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="Models that clients train, in turn: the i-th client takes the i-th. Default: any."
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="What runs programs: torch (.pt2), or executorch (.pte), as on phones. Several are taken in turn, as "
            "models are.",
        ),
    ] = "torch",
    photo_cache: Annotated[
        Path | None, typer.Option(help="Folder in which data sets are kept. Default: fedlens in ~/.cache.")
    ] = None,
    faults: Annotated[Path | None, typer.Option(help="Fault plan (TOML): who misbehaves in which round.")] = None,
    state: Annotated[
        Path, typer.Option(help="Folder for what must outlive the fleet: secrets, outboxes, caches.")
    ] = Path("fleet-state"),
    ca: Annotated[Path | None, typer.Option(help="Certificate (PEM) to trust instead of the system's.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the trainers' enrolment token. Default: ${TOKEN_VARIABLE}.")
    ] = None,
    evaluator_token_file: Annotated[
        Path | None,
        typer.Option(help="File with an evaluator's token: one client more, with all test photos or the unseen."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one per core.")] = None,
    task: Annotated[int | None, typer.Option(min=1, help="Take work of the task with this id alone.")] = None,
) -> None:
    """Run many emulated clients on this machine, each a whole client over real HTTP.

    Ctrl-C ends every client after the step in which it is; the same command goes on from there.
    """
    from rich.console import Console

    from fedlens.sources import SourceUnavailable, default_cache, photos_of
    from fedlens_edge_client.emulation.faults import FaultPlan
    from fedlens_edge_client.emulation.fleet.config import FleetConfig, default_workers, fleet_key
    from fedlens_edge_client.emulation.fleet.session import run_session
    from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
    from fedlens_edge_client.engines.choice import EngineName, check_installed
    from fedlens_edge_client.errors import EdgeClientError

    settings = _settings(
        partition,
        per_class=per_class,
        test_per_class=test_per_class,
        drift=drift,
        beta=beta,
        min_photos=min_photos,
        classes_per_client=classes_per_client,
        sigma=sigma,
        test_photos=test_photos,
        unseen=unseen,
    )
    engines = tuple(map(EngineName, _engines(engine)))
    try:
        for name in engines:
            check_installed(name)
        pool = PhotoPool.open(photos_of(photos, photo_cache or default_cache()))
        default = None if partition is PartitionChoice.CLIENTS else DEFAULT_CLIENTS
        chosen = Partition.of(PartitionName(partition), settings, seed=seed, clients=clients or default)
        count = chosen.clients_of(pool)
        config = FleetConfig(
            server=server,
            clients=count,
            pool=pool,
            partition=chosen,
            plan=FaultPlan() if faults is None else FaultPlan.load(faults),
            key=fleet_key(state),
            state=state,
            workers=workers or default_workers(count),
            token=enrolment_token(token_file),
            evaluator_token=None if evaluator_token_file is None else enrolment_token(evaluator_token_file),
            ca=ca,
            task=task,
            models=_names(models),
            engines=engines,
        )
        config.album(0)
        status = run_session(config, Console())
    except (EdgeClientError, SourceUnavailable) as error:
        typer.echo(f"fedlens: {error}", err=True)
        raise typer.Exit(1) from error
    raise typer.Exit(status)


def _settings(partition: PartitionChoice, **given: float | None) -> dict[str, float]:
    """What was given of the partition's options.

    Raises:
        typer.BadParameter: One that is given is not one of this partition.
    """
    from fedlens_edge_client.emulation.partitions import SETTINGS, PartitionName

    settings = {key: value for key, value in given.items() if value is not None}
    allowed = [key for key in SETTINGS[PartitionName(partition)] if key in given]
    for key in settings:
        if key not in allowed:
            raise typer.BadParameter(
                f"partition {partition.value} has no such option; it has {', '.join(map(_option, allowed))}",
                param_hint=_option(key),
            )
    return settings


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _names(models: str | None) -> tuple[str, ...]:
    names = () if models is None else tuple(name.strip() for name in models.split(","))
    if not all(names):
        raise typer.BadParameter(f"{models!r} must be names with commas between", param_hint="--models")
    return names


def _engines(names: str) -> tuple[EngineChoice, ...]:
    try:
        return tuple(EngineChoice(name.strip()) for name in names.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"{names!r} must be {' or '.join(EngineChoice)}, or several of them with commas between",
            param_hint="--engine",
        ) from error
