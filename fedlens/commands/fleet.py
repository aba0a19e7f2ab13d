"""`fedlens fleet`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedlens.commands.options import HOUR_LASTS_HELP, HOUR_S, MAX_SEED, TOKEN_VARIABLE, enrolment_token, reported

if TYPE_CHECKING:
    from fedlens_edge_client.emulation.partitions import PartitionName
    from fedlens_edge_client.engines.choice import EngineName

DEFAULT_CLIENTS = 20


class PartitionChoice(StrEnum):
    """The partitions' names, without importing the partitions."""

    CAMERA_IID = "camera-iid"
    CAMERA_NONIID = "camera-noniid"
    ALBUM = "album"
    DIRICHLET = "dirichlet"
    CLASSES = "classes"
    TWO_CLASSES = "two-classes"
    POOLED_HALVES = "pooled-halves"
    FEATURE_SKEW = "feature-skew"
    CLIENTS = "clients"


def fleet(
    server: Annotated[str, typer.Option(help="Address of the server, such as https://127.0.0.1:8443.")],
    photos: Annotated[
        str,
        typer.Option(
            metavar="DIR|CSV|NAME",
            help="Folder with a sub-folder of photos per class, with two such folders `train` and `test`, or with one "
            "such folder per client; a table of files and clients; or a data set: digits, cifar10, cifar100, "
            "fashion-mnist.",
        ),
    ],
    clients: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000,
            help="Number of clients here. Default: 20; with partition clients one for each person or device; with --of "
            "all from --first on.",
        ),
    ] = None,
    first: Annotated[
        int,
        typer.Option(
            min=0,
            max=100_000,
            help="Index of the first client here; other machines have the others, with the same photos, seed and key.",
        ),
    ] = 0,
    of: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000,
            help="Number of clients on all machines, among which a partition divides photos. Default: this machine's.",
        ),
    ] = None,
    partition: Annotated[
        PartitionChoice, typer.Option(help="The photos of each client in each round.")
    ] = PartitionChoice.CAMERA_NONIID,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything random, and of the clients' identities.")
    ] = 1,
    per_class: Annotated[
        int | None,
        typer.Option(min=1, help="n of a camera or album: about n photos of each class in a round. Default: 10."),
    ] = None,
    test_per_class: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For a camera or album: test photos of each class and client. Default: a fifth of n, at least 1.",
        ),
    ] = None,
    drift: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="For album: strength of the change of the class mix over the rounds. Default: 0."
        ),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(help="For dirichlet and pooled-halves: with a smaller beta, clients differ more. Default: 0.5."),
    ] = None,
    min_photos: Annotated[
        int | None,
        typer.Option(
            min=1, help="Minimum of a client's photos with dirichlet (default: 10) or pooled-halves (both halves; 40)."
        ),
    ] = None,
    classes_per_client: Annotated[
        int | None, typer.Option(min=1, help="For classes: number of classes of each client. Default: 2.")
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(min=0, help="For feature-skew: client i of n has noise of deviation sigma i/n. Default: 0.1."),
    ] = None,
    test_photos: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="For dirichlet, classes, two-classes and feature-skew: test photos of each client. Default: all, "
            "divided like train photos.",
        ),
    ] = None,
    unseen: Annotated[
        float | None,
        typer.Option(
            help="For clients: fraction of the people or devices whose photos only the evaluator has. Default: 0.",
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="Models that clients train; client i takes the i-th, cyclically. Default: any."
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Engines that run programs: torch (.pt2), or executorch (.pte), as on phones; client i takes the "
            "i-th, cyclically.",
        ),
    ] = "torch",
    photo_cache: Annotated[
        Path | None, typer.Option(help="Folder for data sets. Default: fedlens in ~/.cache.")
    ] = None,
    faults: Annotated[Path | None, typer.Option(help="Fault plan (TOML): faults of clients by round.")] = None,
    presence: Annotated[
        Path | None, typer.Option(help="Presence plan (TOML): the hours in which clients are there. Default: all.")
    ] = None,
    hour_lasts: Annotated[
        float, typer.Option(min=0.1, max=HOUR_S, help=f"{HOUR_LASTS_HELP} The server's should be the same.")
    ] = HOUR_S,
    state: Annotated[Path, typer.Option(help="Folder for the fleet's state: secrets, outboxes, caches.")] = Path(
        "fleet-state"
    ),
    ca: Annotated[Path | None, typer.Option(help="Certificate (PEM) to trust instead of the system's.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the trainers' enrolment token. Default: ${TOKEN_VARIABLE}.")
    ] = None,
    evaluator_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with an evaluator's token; adds a client with all test photos, or all unseen people's photos."
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one per core.")] = None,
    task: Annotated[int | None, typer.Option(min=1, help="Id of the only task to take part in. Default: all.")] = None,
) -> None:
    """Run many emulated clients on this machine, each a whole client over real HTTP.

    Ctrl-C ends every client after its current step; the same command goes on from there.
    """
    from rich.console import Console

    from fedlens.sources import SourceUnavailable, default_cache, photos_of
    from fedlens_edge_client.emulation.faults import FaultPlan
    from fedlens_edge_client.emulation.fleet.config import FleetConfig, default_workers, fleet_key
    from fedlens_edge_client.emulation.fleet.session import run_session
    from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
    from fedlens_edge_client.emulation.presence import PresencePlan
    from fedlens_edge_client.engines.choice import check_installed
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
    engines = _engines(engine)
    with reported(EdgeClientError, SourceUnavailable):
        for name in engines:
            check_installed(name)
        pool = PhotoPool.open(photos_of(photos, photo_cache or default_cache()))
        whole = _whole_fleet(PartitionName(partition), clients, first, of)
        chosen = Partition.of(PartitionName(partition), settings, seed=seed, clients=whole)
        total = chosen.clients_of(pool)
        count = clients or total - first
        if not 0 < count <= total - first:
            raise typer.BadParameter(
                f"the first client is {first}, the last one {first + count - 1}, but there are 0 to {total - 1}",
                param_hint="--first",
            )
        config = FleetConfig(
            server=server,
            clients=count,
            first=first,
            pool=pool,
            partition=chosen,
            plan=FaultPlan() if faults is None else FaultPlan.load(faults),
            key=fleet_key(state, makes=first == 0),
            state=state,
            workers=workers or default_workers(count),
            token=enrolment_token(token_file),
            evaluator_token=None if evaluator_token_file is None else enrolment_token(evaluator_token_file),
            ca=ca,
            task=task,
            models=_names(models),
            engines=engines,
            presence=None if presence is None else PresencePlan.load(presence),
            hour_lasts_s=hour_lasts,
        )
        config.album(first)
        status = run_session(config, Console())
    raise typer.Exit(status)


def _settings(partition: PartitionChoice, **given: float | None) -> dict[str, float]:
    """The given options of a partition.

    Raises:
        typer.BadParameter: An option belongs to another partition.
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


def _whole_fleet(partition: "PartitionName", clients: int | None, first: int, of: int | None) -> int | None:
    """The number of clients on all machines; None: one for each person.

    Raises:
        typer.BadParameter: It is needed, and cannot be told.
    """
    from fedlens_edge_client.emulation.partitions import DRAWING, PartitionName

    if of is not None or (first and partition not in DRAWING):
        if of is None:
            raise typer.BadParameter(
                f"partition {partition.value} divides the photos among all clients; say how many all machines have",
                param_hint="--of",
            )
        return of
    if clients is None and partition is PartitionName.CLIENTS:
        return None
    return first + (clients or DEFAULT_CLIENTS)


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _names(models: str | None) -> tuple[str, ...]:
    names = () if models is None else tuple(name.strip() for name in models.split(","))
    if not all(names):
        raise typer.BadParameter(f"{models!r} must be names with commas between", param_hint="--models")
    return names


def _engines(names: str) -> "tuple[EngineName, ...]":
    from fedlens_edge_client.engines.choice import EngineName

    try:
        return tuple(EngineName(name.strip()) for name in names.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"{names!r} must be {' or '.join(EngineName)}, or several of them with commas between",
            param_hint="--engine",
        ) from error
