"""`fedlens compare`."""

from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import MAX_SEED, named_value, reported


def compare(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A file (TOML), or a preset: fedns, fedclassavg, pfedsim, fedconcat, each of the last three also with "
            "-baselines, phone or people.",
        ),
    ],
    reduced: Annotated[
        bool, typer.Option("--reduced/--paper", help="The study's reduced size, for two cores, or its full size.")
    ] = False,
    photos: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Photos instead of the study's: a folder, or digits, cifar10 ..."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for all files. Default: the study's name.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Run only this method of the study; may be given several times.")
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(min=0, max=MAX_SEED, help="Seed instead of the study's; may be given several times."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Another value in the study, such as partition.beta=0.5; several times."
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="Method that the others are compared with, seed by seed. Default: the study's, or training alone.",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one per core.")] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|here",
            help="Carry out each run as a task of the Ray cluster whose head has this address (HOST:PORT); with here, "
            "of one on this machine, with a CPU for each of --workers.",
        ),
    ] = None,
    run_cpus: Annotated[int, typer.Option(min=1, help="With --ray: CPUs that each run needs.")] = 1,
    run_memory: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="GIB", help="With --ray: GiB of memory that each run needs. Default: any."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for data sets. Default: fedlens in ~/.cache."),
    ] = None,
    device: Annotated[str, typer.Option(help="Device that trains: cpu or, if there is one, cuda.")] = "cpu",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard's event files.")] = False,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Also log all runs to MLflow, at MLFLOW_TRACKING_URI.")
    ] = False,
) -> None:
    """Compare methods on the same clients, photos and seeds, with the server's own round engine.

    Ctrl-C ends it at once; the same command goes on from there and repeats no finished run.
    """
    from rich.console import Console

    from fedlens.compare import session
    from fedlens.compare.on_ray.cluster import RayConfig
    from fedlens.compare.study import choose, load
    from fedlens.errors import FedlensError
    from fedlens.sources import default_cache
    from fedlens_edge_client.emulation.fleet.config import default_workers
    from fedlens_edge_client.errors import EdgeClientError

    stopped = "the study was stopped; the same command goes on from here"
    with reported(EdgeClientError, FedlensError, interrupted=stopped):
        wanted = choose(
            load(study, reduced=reduced, changes=[named_value(entry, "--set") for entry in setting or ()]),
            methods=tuple(method or ()),
            seeds=tuple(seed or ()),
            photos=photos,
            baseline=baseline,
        )
        runs = len(wanted.methods) * len(wanted.seeds)
        needs = RayConfig(address=ray or "", cpus=run_cpus, memory_gib=run_memory, gpus=device != "cpu")
        config = session.SessionConfig(
            out=out or Path(wanted.name),
            cache=cache or default_cache(),
            workers=workers or default_workers(runs),
            device=device,
            ray=needs if ray else None,
            tensorboard=tensorboard,
            mlflow=mlflow,
        )
        status = session.run_study(wanted, config, Console())
    raise typer.Exit(status)
