"""`fedlens compare`."""

from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import MAX_SEED


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("compare")(compare)


def compare(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A file (TOML), or a preset: fedns, fedclassavg, pfedsim, fedconcat, phone or people.",
        ),
    ],
    reduced: Annotated[bool, typer.Option("--reduced", help="In the study's reduced size, for two cores.")] = False,
    photos: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Other photos than the study's: a folder, or digits, cifar10 ..."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for everything. Default: the study's name.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method of the study; may be given several times.")
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(min=0, max=MAX_SEED, help="This seed instead of the study's; may be given several times."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one per core.")] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder in which data sets are kept. Default: fedlens in ~/.cache."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where models train: cpu, or cuda where there is one.")] = "cpu",
) -> None:
    """Compare methods on the same clients, photos and seeds, with the server's own round engine.

    Ctrl-C ends it at once; the same command goes on from there, and does nothing again that is done.
    """
    from rich.console import Console

    from fedlens.compare import session
    from fedlens.compare.study import StudyError, choose, load
    from fedlens.sources import SourceUnavailable, default_cache
    from fedlens_edge_client.emulation.fleet.config import default_workers
    from fedlens_edge_client.errors import EdgeClientError

    try:
        wanted = choose(
            load(study, reduced=reduced), methods=tuple(method or ()), seeds=tuple(seed or ()), photos=photos
        )
        runs = len(wanted.methods) * len(wanted.seeds)
        config = session.SessionConfig(
            out=out or Path(wanted.name),
            cache=cache or default_cache(),
            workers=workers or default_workers(runs),
            device=device,
        )
        status = session.run_study(wanted, config, Console())
    except (EdgeClientError, SourceUnavailable, StudyError) as error:
        typer.echo(f"fedlens: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo("fedlens: the study was stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from error
    raise typer.Exit(status)
